/* Files that a rehearsed script opens for writing, and entries that it makes, renames and removes.
 *
 * The script works in a copy of its folder, in a tree that stands for the file system
 * (MEMAGENT_REHEARSAL_FOLDER). Large files and all neighbours are symbolic links to the originals. A
 * link that is opened for writing becomes a file of its own first: with the content of the original,
 * unless that would be cut off at once.
 *
 * Elsewhere, what was there before the rehearsal stays: a file opened for writing is another one
 * without a name, nothing is removed, and a rename makes a link. Other changes are listed, a line
 * each, in MEMAGENT_REHEARSAL_WRITES.
 */
#define _GNU_SOURCE
#include "device.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WHOLE_FILE ((size_t)0x7ffff000)
#define MAX_SPARE_BYTES ((uint64_t)64 << 20) /* longer content isn't copied */

static char folder[PATH_MAX];
static size_t folder_length;
static int writes = -1;
static const char *temporary = "/tmp";
static struct statx_timestamp began;

static int system_open(int at, const char *path, int flags, mode_t mode) {
    return (int)syscall(SYS_openat, at, path, flags, mode);
}

__attribute__((constructor)) static void read_folder(void) {
    const char *name = getenv("MEMAGENT_REHEARSAL_FOLDER");
    const char *list = getenv("MEMAGENT_REHEARSAL_WRITES");
    if (!name || !realpath(name, folder)) return;
    folder_length = strlen(folder);
    if (list) writes = system_open(AT_FDCWD, list, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    struct statx status;
    if (!statx(AT_FDCWD, folder, 0, STATX_BASIC_STATS, &status)) began = status.stx_ctime;
    if (getenv("TMPDIR")) temporary = getenv("TMPDIR");
}

static bool is_below(const char *path, const char *place) {
    size_t length = strlen(place);
    return !strncmp(path, place, length) && (path[length] == '/' || !path[length]);
}

static bool is_below_folder(const char *path) { return is_below(path, folder); }

/* Where an entry is, itself and not what a link leads to. The parent has to exist. */
static bool find_place(int at, const char *path, char place[PATH_MAX]) {
    char parent[PATH_MAX], whole[PATH_MAX];
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    size_t start = length;
    while (start && path[start - 1] != '/') start--;
    if (at == AT_FDCWD || path[0] == '/')
        snprintf(parent, sizeof parent, "%.*s", start ? (int)start : 1, start ? path : ".");
    else snprintf(parent, sizeof parent, "/proc/self/fd/%d/%.*s", at, (int)start, path);
    if (!realpath(parent, whole)) return false;
    const char *between = whole[1] ? "/" : "";
    int written =
        snprintf(place, PATH_MAX, "%s%s%.*s", whole, between, (int)(length - start), path + start);
    return written < PATH_MAX;
}

static bool has_place_below_folder(int at, const char *path) {
    char place[PATH_MAX];
    return find_place(at, path, place) && is_below_folder(place);
}

static void copy_content(int from, int to) {
    while (sendfile(to, from, NULL, WHOLE_FILE) > 0) {
    }
}

/* Replace a link by a file of its own. */
static void detach(int at, const char *path, bool keeps_content) {
    struct stat status;
    char draft[PATH_MAX];
    if (fstatat(at, path, &status, AT_SYMLINK_NOFOLLOW) || !S_ISLNK(status.st_mode)) return;
    if (fstatat(at, path, &status, 0) || !S_ISREG(status.st_mode)) return;
    if (!has_place_below_folder(at, path)) return;
    if (snprintf(draft, sizeof draft, "%s.%d~", path, getpid()) >= (int)sizeof draft) return;
    int to = system_open(at, draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, status.st_mode | 0200);
    if (to < 0) return;
    int from = keeps_content ? system_open(at, path, O_RDONLY | O_CLOEXEC, 0) : -1;
    if (from >= 0) {
        copy_content(from, to);
        close(from);
    }
    close(to);
    if (renameat(at, draft, at, path)) unlinkat(at, draft, 0);
}

static bool path_of(int file, char path[PATH_MAX]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
    return length > 0;
}

/* Whether programs write there all the time, and nobody misses it. */
static bool is_transient(const char *place) {
    static const char *const places[] = {"/dev", "/proc", "/sys"};
    static const char *const parts[] = {"/.cache/", "/.triton/", "/__pycache__/"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (is_below(place, places[i]) || strstr(place, parts[i])) return true;
    return is_below(place, temporary);
}

/* Whether an entry elsewhere is older than the rehearsal; `flags` as for open. */
static bool was_there(int at, const char *path, int flags, struct statx *status) {
    char place[PATH_MAX];
    if (writes < 0) return false;
    int entry = system_open(at, path, O_PATH | O_CLOEXEC | flags, 0);
    if (entry < 0) return false;
    bool is_known = path_of(entry, place) && !statx(entry, "", AT_EMPTY_PATH,
                                                    STATX_BASIC_STATS | STATX_BTIME, status);
    close(entry);
    if (!is_known || is_below_folder(place) || is_transient(place)) return false;
    struct statx_timestamp born =
        status->stx_mask & STATX_BTIME ? status->stx_btime : status->stx_ctime;
    return born.tv_sec < began.tv_sec ||
           (born.tv_sec == began.tv_sec && born.tv_nsec < began.tv_nsec);
}

/* Return a file without a name in place of one that was there, or -1. */
static int open_spare(int at, const char *path, int flags) {
    struct statx status;
    char draft[PATH_MAX];
    bool keeps_content = !(flags & O_TRUNC);
    if ((flags & O_EXCL) || !was_there(at, path, 0, &status) || !S_ISREG(status.stx_mode) ||
        (keeps_content && status.stx_size > MAX_SPARE_BYTES) ||
        snprintf(draft, sizeof draft, "%s/../spare-XXXXXX", folder) >= (int)sizeof draft)
        return -1;
    int spare = mkostemp(draft, flags & O_CLOEXEC);
    if (spare < 0) return -1;
    syscall(SYS_unlinkat, AT_FDCWD, draft, 0);
    int from = keeps_content ? system_open(at, path, O_RDONLY | O_CLOEXEC, 0) : -1;
    if (from >= 0) {
        copy_content(from, spare);
        close(from);
        lseek(spare, 0, SEEK_SET);
    }
    fcntl(spare, F_SETFL, flags & O_APPEND); /* not before: sendfile refuses such files */
    return spare;
}

static void list_place(const char *place, const char *mark) {
    char line[PATH_MAX + 2];
    if (is_below_folder(place)) return;
    int length = snprintf(line, sizeof line, "%s%s\n", place, mark);
    if (write(writes, line, (size_t)length) < 0) return;
}

/* List a file elsewhere that was opened for writing. */
static void list_write(int file) {
    char path[PATH_MAX];
    struct stat status;
    if (writes < 0 || file < 0 || fstat(file, &status) || !S_ISREG(status.st_mode)) return;
    if (path_of(file, path)) list_place(path, "");
}

/* List an entry elsewhere that was made, renamed or removed, if that succeeded. */
static int list_change(long status, int at, const char *path, const char *mark) {
    char place[PATH_MAX];
    int error = errno;
    if (!status && writes >= 0 && find_place(at, path, place)) list_place(place, mark);
    errno = error;
    return (int)status;
}

static int open_file(int at, const char *path, int flags, mode_t mode) {
    bool writes_to = (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC);
    if (!folder_length || !writes_to || (flags & O_TMPFILE) == O_TMPFILE)
        return system_open(at, path, flags, mode);
    detach(at, path, !(flags & O_TRUNC));
    int spare = open_spare(at, path, flags);
    if (spare >= 0) return spare;
    int file = system_open(at, path, flags, mode);
    int error = errno;
    list_write(file);
    errno = error;
    return file;
}

static mode_t mode_of(int flags, va_list rest) {
    return flags & (O_CREAT | __O_TMPFILE) ? (mode_t)va_arg(rest, int) : 0;
}

#define OPENS(function) \
    API int function(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = mode_of(flags, rest); \
        va_end(rest); \
        return open_file(AT_FDCWD, path, flags, mode); \
    }
#define OPENS_AT(function) \
    API int function(int at, const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = mode_of(flags, rest); \
        va_end(rest); \
        return open_file(at, path, flags, mode); \
    }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

#define OPENS_STREAM(function) \
    API FILE *function(const char *path, const char *mode) { \
        static FILE *(*next)(const char *, const char *); \
        if (!next) next = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, #function); \
        bool writes_to = mode[0] != 'r' || strchr(mode, '+'); \
        if (folder_length && writes_to) { \
            int flags = mode[0] == 'w' ? O_TRUNC : mode[0] == 'a' ? O_APPEND : 0; \
            detach(AT_FDCWD, path, mode[0] != 'w'); \
            int spare = open_spare(AT_FDCWD, path, flags | (strchr(mode, 'x') ? O_EXCL : 0)); \
            if (spare >= 0) return fdopen(spare, mode); \
        } \
        FILE *stream = next(path, mode); \
        int error = errno; \
        if (stream && folder_length && writes_to) list_write(fileno(stream)); \
        errno = error; \
        return stream; \
    }
OPENS_STREAM(fopen)
OPENS_STREAM(fopen64)

API int mkdirat(int at, const char *path, mode_t mode) {
    return list_change(syscall(SYS_mkdirat, at, path, mode), at, path, "/");
}
API int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

API int unlinkat(int at, const char *path, int flags) {
    const char *mark = flags & AT_REMOVEDIR ? "/" : "";
    struct statx status;
    if (was_there(at, path, O_NOFOLLOW, &status)) return 0;
    return list_change(syscall(SYS_unlinkat, at, path, flags), at, path, mark);
}
API int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
API int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
API int remove(const char *path) {
    int status = unlink(path);
    return status && errno == EISDIR ? rmdir(path) : status;
}

/* Rename an entry that was there, or onto one: the former becomes a link, the latter stays. */
static bool rename_kept(int at, const char *path, int to_at, const char *to) {
    struct statx status;
    char place[PATH_MAX];
    bool keeps_target = was_there(to_at, to, O_NOFOLLOW, &status);
    if (!was_there(at, path, O_NOFOLLOW, &status))
        return keeps_target && !syscall(SYS_unlinkat, at, path, 0);
    if (keeps_target || !find_place(at, path, place)) return keeps_target;
    syscall(SYS_unlinkat, to_at, to, 0);
    return !list_change(symlinkat(place, to_at, to), to_at, to, "");
}

API int renameat2(int at, const char *path, int to_at, const char *to, unsigned flags) {
    if (rename_kept(at, path, to_at, to)) return 0;
    int status = list_change(syscall(SYS_renameat2, at, path, to_at, to, flags), at, path, "");
    return list_change(status, to_at, to, "");
}
API int renameat(int at, const char *path, int to_at, const char *to) {
    return renameat2(at, path, to_at, to, 0);
}
API int rename(const char *path, const char *to) {
    return renameat2(AT_FDCWD, path, AT_FDCWD, to, 0);
}
