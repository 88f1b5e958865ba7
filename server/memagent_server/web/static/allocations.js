// Replay a record of torch's caching allocator: the live bytes of each call site after each event.

const MAX_SITES = 9;
export const BEFORE = "before the record";
export const OTHERS = "other call sites";

// `snapshot` is that of torch.cuda.memory._snapshot. Returns, for the device with the most events, {sites: [{name, peak_bytes,
// end_bytes}], columns: {event, time_us, total, reserved, live: [[bytes]]}}: a column is the fullest moment of its events.
export function replay(snapshot, width) {
  const traces = snapshot.device_traces ?? [];
  const device = traces.reduce((best, trace, index) => (trace.length > (traces[best]?.length ?? -1) ? index : best), 0);
  const events = traces[device] ?? [];
  const segments = (snapshot.segments ?? []).filter((segment) => (segment.device ?? device) === device);
  const moves = movesOf(events, segments);
  const names = largest(moves);
  return { device, events: events.length, sites: names, ...columns(events, moves, names, segments, width) };
}

// Blocks that live, by address: of the record, and those that it must have begun with.
function movesOf(events, segments) {
  const moves = [];
  const live = new Map();
  const start = [];
  events.forEach((event, row) => {
    if (event.action === "alloc") {
      const site = siteOf(event.frames);
      live.set(event.addr, { site, size: event.size });
      moves.push({ row, site, change: event.size });
    } else if (event.action === "free_requested" || (event.action === "free" && live.has(event.addr))) {
      const block = live.get(event.addr) ?? { site: BEFORE, size: event.size };
      if (!live.delete(event.addr)) start.push({ row: -1, site: BEFORE, change: event.size });
      moves.push({ row, site: block.site, change: -block.size });
    }
  });
  for (const segment of segments) for (const block of segment.blocks ?? []) {
    if (block.state === "active_allocated" && !live.has(block.address)) {
      start.push({ row: -1, site: block.frames?.length ? siteOf(block.frames) : BEFORE, change: block.requested_size ?? block.size });
    }
  }
  return [...start, ...moves];
}

// The innermost frame of the script: torch's own say nothing about it.
export function siteOf(frames) {
  const ours = frames?.find(({ filename }) => filename.endsWith(".py") && !/\/(site-packages|torch)\//.test(filename));
  const frame = ours ?? frames?.find(({ filename }) => filename.endsWith(".py")) ?? frames?.[0];
  return frame ? `${frame.filename.split("/").at(-1)}:${frame.line} ${frame.name}` : "without a stack";
}

// The sites with the highest peaks; the rest is one.
function largest(moves) {
  const [now, peaks, ends] = [new Map(), new Map(), new Map()];
  for (const { site, change } of moves) {
    const value = (now.get(site) ?? 0) + change;
    now.set(site, value);
    ends.set(site, value);
    if (value > (peaks.get(site) ?? 0)) peaks.set(site, value);
  }
  const sorted = [...peaks].sort((a, b) => b[1] - a[1]);
  const sites = sorted.slice(0, MAX_SITES).map(([name, peak]) => ({ name, peak_bytes: peak, end_bytes: ends.get(name) }));
  const rest = sorted.slice(MAX_SITES);
  if (rest.length) sites.push({ name: OTHERS, peak_bytes: null, end_bytes: rest.reduce((sum, [name]) => sum + ends.get(name), 0) });
  return sites;
}

function columns(events, moves, sites, segments, width) {
  const place = new Map(sites.map(({ name }, index) => [name, index]));
  const others = place.get(OTHERS);
  const live = sites.map(() => 0);
  const reserved = reservedOf(events, segments);
  const per = Math.max(1, Math.ceil((events.length + 1) / width));
  const result = { event: [], time_us: [], total: [], reserved: [], live: sites.map(() => []) };
  let [total, next, best] = [0, 0, null];
  for (let row = -1; row < events.length; row += 1) {
    for (; next < moves.length && moves[next].row === row; next += 1) {
      live[place.get(moves[next].site) ?? others] += moves[next].change;
      total += moves[next].change;
    }
    if (!best || total >= best.total) best = { row, total, live: [...live] };
    if ((row + 2) % per && row < events.length - 1) continue;
    result.event.push(best.row + 1);
    result.time_us.push(events[Math.max(0, best.row)]?.time_us ?? null);
    result.total.push(best.total);
    result.reserved.push(reserved[best.row + 1]);
    best.live.forEach((bytes, index) => result.live[index].push(bytes));
    best = null;
  }
  return { columns: result };
}

// Reserved bytes before the first event and after each: backwards from the segments at the end.
function reservedOf(events, segments) {
  const signs = { segment_alloc: 1, segment_map: 1, segment_free: -1, segment_unmap: -1 };
  const changes = events.map(({ action, size }) => (signs[action] ?? 0) * size);
  const end = segments.reduce((sum, segment) => sum + segment.total_size, 0);
  let now = end - changes.reduce((sum, change) => sum + change, 0);
  return [now, ...changes.map((change) => (now += change))];
}
