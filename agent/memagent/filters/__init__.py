"""Language of filters on runs: `config.lr < 1e-3 and peak_ratio > 0.9` (docs/filters.md)."""
