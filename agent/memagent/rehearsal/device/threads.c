/* Threads that outlive Python.
 *
 * While Python ends, it ends each thread that asks for its lock, by pthread_exit. This aborts the
 * process if the thread is in C++ code that allows no exceptions, such as torch's threads of
 * backward, which release objects of Python after the last backward ("terminate called without an
 * active exception"). A real GPU seldom is so fast. Such threads wait here instead until the process
 * has ended, as they do since Python 3.14.
 */
#define _GNU_SOURCE
#include "device.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static bool python_is_ending(void) {
    int (*is_ending)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    if (!is_ending) is_ending = (int (*)(void))dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    return is_ending && is_ending();
}

API __attribute__((noreturn)) void pthread_exit(void *result) {
    while (gettid() != getpid() && python_is_ending()) pause();
    void (*next)(void *) = (void (*)(void *))dlsym(RTLD_NEXT, "pthread_exit");
    next(result);
    abort(); /* it does not return */
}
