from collections.abc import MutableMapping


class Column:
    def __init__(self, data):
        self.data = data


class Frame(MutableMapping):
    def __init__(self):
        self._columns = {}

    def __getitem__(self, name):
        return self._columns[name].data

    def __setitem__(self, name, data):
        self._columns[name] = Column(data)  # LEAK any _columns|ndata|Frame|frame

    def __delitem__(self, name):
        del self._columns[name]

    def __iter__(self):
        return iter(self._columns)

    def __len__(self):
        return len(self._columns)


class Graph:
    def __init__(self, src, dst, num_nodes):
        self.src, self.dst, self.num_nodes = src, dst, num_nodes
        self._node_frame = Frame()

    @property
    def ndata(self):
        return self._node_frame

    def update_all(self, field, out):
        h = self._node_frame[field]
        result = h.new_zeros(self.num_nodes, h.shape[1]).index_add_(0, self.dst, h[self.src])
        self._node_frame[out] = result
