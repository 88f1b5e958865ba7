"""`memagent run --live`: a view of the run on the terminal's last lines, beside what the script prints.

1. The script runs in a process of its own, exactly as without `--live`; this one only looks. It outlives a script that the kernel
   kills, and puts the terminal right again.
2. The run sends its state as datagrams (`memagent.live.publisher`), from every rank that a launcher started.
3. The last lines are taken out of the terminal's scrolling region, as apt does for its progress bar: nothing that the script writes is
   captured, delayed or changed, not even bars that write over their own line.
4. Where stderr is no terminal, a plain line comes every few seconds.
"""

from memagent.live.supervisor import run_beside

__all__ = ["run_beside"]
