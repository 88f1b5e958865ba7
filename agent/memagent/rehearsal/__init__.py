"""The rehearsal device: an unmodified CUDA build of torch, on a GPU that is only address space.

`build` compiles the library in `device/`, `stubs` and `elf` write a second
one with what torch imports and needs no behaviour, `launch` makes the environment of a process that
uses both, on a card. In that process `values` computes small tensors on the CPU.
"""
