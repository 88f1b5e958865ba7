// Read a pickle of plain values: dicts, lists, tuples, text, numbers, booleans and None, in protocols 2 to 5. Nothing in it can
// run: any other opcode is an error.

const TEXT = new TextDecoder();
const MARK = Symbol("mark");

export function readPickle(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const [stack, memo] = [[], []];
  let at = 0;
  const skip = (size) => (at += size) - size;
  const byte = () => bytes[skip(1)];
  const long = () => view.getUint32(skip(4), true);
  const huge = () => Number(view.getBigUint64(skip(8), true));
  const text = (size) => TEXT.decode(bytes.subarray(skip(size), at));
  const blob = (size) => bytes.subarray(skip(size), at);
  const marked = () => stack.splice(stack.lastIndexOf(MARK)).slice(1);
  const last = () => stack.at(-1);
  const tuple = (size) => stack.push(stack.splice(stack.length - size));
  const integer = (size) => {
    let value = 0;
    for (let place = 0; place < size; place += 1) value += bytes[at + place] * 256 ** place;
    if (size && bytes[at + size - 1] & 0x80) value -= 256 ** size;
    at += size;
    return value;
  };
  const fill = (items) => {
    const target = last();
    for (let place = 0; place < items.length; place += 2) target[items[place]] = items[place + 1];
  };
  const extend = (items) => {
    for (const item of items) last().push(item);
  };
  const opcodes = {
    "\x80": () => skip(1), "\x95": () => skip(8), "(": () => stack.push(MARK),
    "}": () => stack.push(Object.create(null)), "]": () => stack.push([]), ")": () => stack.push([]),
    "\x94": () => memo.push(last()), q: () => (memo[byte()] = last()), r: () => (memo[long()] = last()),
    h: () => stack.push(memo[byte()]), j: () => stack.push(memo[long()]),
    "\x8c": () => stack.push(text(byte())), X: () => stack.push(text(long())), "\x8d": () => stack.push(text(huge())),
    C: () => stack.push(blob(byte())), B: () => stack.push(blob(long())), "\x8e": () => stack.push(blob(huge())),
    K: () => stack.push(byte()), M: () => stack.push(view.getUint16(skip(2), true)), J: () => stack.push(view.getInt32(skip(4), true)),
    "\x8a": () => stack.push(integer(byte())), G: () => stack.push(view.getFloat64(skip(8))),
    N: () => stack.push(null), "\x88": () => stack.push(true), "\x89": () => stack.push(false),
    a: () => extend([stack.pop()]), e: () => extend(marked()),
    s: () => fill(stack.splice(stack.length - 2)), u: () => fill(marked()),
    t: () => stack.push(marked()), "\x85": () => tuple(1), "\x86": () => tuple(2), "\x87": () => tuple(3),
  };
  for (;;) {
    const code = String.fromCharCode(byte());
    if (code === ".") return stack.pop();
    if (!opcodes[code]) throw new Error(`its record has an unknown opcode at ${at - 1}`);
    opcodes[code]();
  }
}
