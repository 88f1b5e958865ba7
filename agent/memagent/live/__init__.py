"""`memagent run --live`: a view of the run on the terminal's last lines.

1. The script runs in a child process, exactly as without `--live`; the supervisor only displays. It
   outlives a script that the kernel kills, and restores the terminal.
2. The run sends its state as datagrams (`memagent.live.publisher`), from every rank.
3. The last lines are excluded from the terminal's scrolling region, as apt does for its progress
   bar. Output of the script is not captured, delayed or changed, not even a progress bar.
4. If stderr is not a terminal, a plain line is printed every few seconds.
"""
