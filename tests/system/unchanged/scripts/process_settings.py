# process: own
"""Global settings of process, Python and torch before, during and after training."""
import decimal
import faulthandler
import gc
import locale
import logging
import os
import resource
import signal
import sys
import threading
import tracemalloc
import warnings

import torch

torch.manual_seed(59)


def settings():
    yield [os.getcwd(), sys.argv, __name__, __file__, sorted(os.environ), os.nice(0), oct(os.umask(18))]
    yield [sys.path, sys.flags, sys.getrecursionlimit(), sys.getswitchinterval(), sys.dont_write_bytecode]
    yield [sys.gettrace(), sys.getprofile(), sys.displayhook is sys.__displayhook__, sys.breakpointhook is sys.__breakpointhook__, sys.unraisablehook is sys.__unraisablehook__]
    yield [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.garbage), len(gc.callbacks), gc.get_freeze_count()]
    yield [tracemalloc.is_tracing(), faulthandler.is_enabled(), warnings.filters[:3], len(warnings.filters)]
    yield [logging.root.level, logging.root.handlers, logging.lastResort, logging.getLoggerClass(), logging.raiseExceptions]
    yield [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGHUP, signal.SIGALRM, signal.SIGPIPE)]
    yield [resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_DATA, resource.RLIMIT_CORE, resource.RLIMIT_AS)]
    yield [locale.getlocale(), decimal.getcontext().prec, threading.main_thread().name, threading.stack_size()]
    yield [torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()]
    yield [torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled(), torch.cuda.is_initialized(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled(), torch.is_autocast_enabled("cpu")]
    yield [sorted(k for k in sys.modules["__main__"].__dict__ if not k.startswith("__")), sys.modules["__main__"].__dict__ is globals(), __spec__, __package__, __builtins__ is sys.modules["builtins"], __doc__[:6], type(__loader__).__name__, __cached__ if "__cached__" in globals() else None]
    yield [k for k in globals() if k.startswith("__")]


def show(when):
    for values in settings():
        print(when, values)


show("before")
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 2:
        show("during")
show("after")
