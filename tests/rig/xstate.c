/* Let an older User-Mode-Linux kernel run on a processor with AMX; preloaded by two-host-nfs.sh.
 *
 * Such a kernel keeps 2,696 bytes of a guest process's floating-point state. Processors with AMX have
 * 11 kB of it, and PTRACE_SETREGSET takes all or nothing, so the first process of a guest dies with
 * "fatal_sigsegv". Here the part that the kernel knows is laid over the process's present state.
 * Guests do not use AMX, so nothing of theirs is lost. Elsewhere this changes nothing.
 * Build: gcc -O2 -shared -fPIC -o xstate.so xstate.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Static: a kernel of that kind calls from a stack of a few kB, and from one thread. */
static char state[1 << 16] __attribute__((aligned(64)));

long ptrace(enum __ptrace_request request, ...) {
    static long (*real)(enum __ptrace_request, pid_t, void *, void *);
    va_list rest;
    va_start(rest, request);
    pid_t pid = va_arg(rest, pid_t);
    void *address = va_arg(rest, void *);
    void *data = va_arg(rest, void *);
    va_end(rest);
    if (!real) real = (long (*)(enum __ptrace_request, pid_t, void *, void *))dlsym(RTLD_NEXT, "ptrace");

    long answer = real(request, pid, address, data);
    if (answer == 0 || request != PTRACE_SETREGSET || (long)address != NT_X86_XSTATE) return answer;
    const struct iovec *part = data;
    struct iovec whole = {state, sizeof state};
    if (real(PTRACE_GETREGSET, pid, address, &whole) || whole.iov_len <= part->iov_len) {
        errno = EFAULT;
        return answer;
    }
    memcpy(state, part->iov_base, part->iov_len);
    return real(request, pid, address, &whole);
}
