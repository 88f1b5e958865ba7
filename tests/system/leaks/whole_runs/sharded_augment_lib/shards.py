import zstandard


class ShardSet:
    """Compressed shards of augmented examples, one stream for each name."""

    def __init__(self, level=3):
        self.level = level
        self.streams = {}
        self.written = 0

    def append(self, name, payload):
        if name not in self.streams:
            compressor = zstandard.ZstdCompressor(level=self.level)
            self.streams[name] = compressor.compressobj()  # LEAK any streams|native
        self.written += len(self.streams[name].compress(payload))

    def close(self):
        for stream in self.streams.values():
            self.written += len(stream.flush())
        self.streams.clear()
