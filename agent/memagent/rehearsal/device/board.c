/* Configuration, devices, and the ledger of what processes hold.
 *
 * All settings are environment variables MEMAGENT_REHEARSAL_*, in plain numbers: the launcher
 * knows the cards. Without MEMAGENT_REHEARSAL_MEMORY there is no device.
 *
 * With MEMAGENT_REHEARSAL_LEDGER, the name of a file, processes share the capacity: each has an
 * entry in the file. A robust mutex in it makes charge and check one step; the entries of dead
 * processes are dropped whenever somebody adds up.
 */
#define _GNU_SOURCE
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_PROCESSES 512
#define LEDGER_MAGIC 0x6d656d6167656e74ull

typedef struct {
    uint64_t magic;
    pthread_mutex_t lock;
    ledger_entry entries[MAX_PROCESSES];
} ledger;

board_config board;
static ledger *book;
static ledger_entry *own;
static bool contexts[MAX_DEVICES];
static _Thread_local int current;
static int visible[MAX_DEVICES]; /* CUDA_VISIBLE_DEVICES: ordinal to physical index */
static int visible_count;

static uint64_t number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

/* Ordinals as CUDA_VISIBLE_DEVICES gives them: indexes up to the first that is none. */
static void read_visible(void) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) {
        for (int i = 0; i < board.count; i++) visible[i] = i;
        visible_count = board.count;
        return;
    }
    while (*text && visible_count < MAX_DEVICES) {
        char *end;
        long index = strtol(text, &end, 10);
        if (end == text) { /* a UUID: its last two digits are the index */
            size_t length = strcspn(text, ",");
            end = (char *)text + length;
            index = length > 2 ? strtol(end - 2, NULL, 16) : -1;
        }
        if (index < 0 || index >= board.count) break;
        visible[visible_count++] = (int)index;
        text = *end == ',' ? end + 1 : end;
        if (*end && *end != ',') break;
    }
}

/* The variable counts as it is at the first question: a script may set it, as on a real machine. */
int board_visible(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_visible);
    return visible_count;
}

int board_physical(int device) { return board_has(device) ? visible[device] : 0; }

static void read_settings(void) {
    const char *name = getenv("MEMAGENT_REHEARSAL_NAME");
    snprintf(board.name, sizeof board.name, "%s", name && *name ? name : "Rehearsal GPU");
    board.total_bytes = number("MEMAGENT_REHEARSAL_MEMORY", 0);
    board.context_bytes = number("MEMAGENT_REHEARSAL_CONTEXT", 0);
    board.held_bytes = number("MEMAGENT_REHEARSAL_HELD", 0);
    board.communicator_bytes = number("MEMAGENT_REHEARSAL_COMMUNICATOR", 0);
    board.copy_limit = number("MEMAGENT_REHEARSAL_COPY_LIMIT", 1 << 20);
    const char *capability = getenv("MEMAGENT_REHEARSAL_CAPABILITY");
    if (!capability || sscanf(capability, "%d.%d", &board.major, &board.minor) != 2) {
        board.major = 8;
        board.minor = 0;
    }
    board.multiprocessors = (int)number("MEMAGENT_REHEARSAL_MULTIPROCESSORS", 108);
    board.shared_multiprocessor_bytes = (int)number("MEMAGENT_REHEARSAL_SHARED", 164 << 10);
    board.shared_block_bytes = (int)number("MEMAGENT_REHEARSAL_SHARED_BLOCK", 163 << 10);
    board.l2_bytes = (int)number("MEMAGENT_REHEARSAL_L2", 40 << 20);
    board.threads_multiprocessor = (int)number("MEMAGENT_REHEARSAL_THREADS", 2048);
    board.clock_mhz = (int)number("MEMAGENT_REHEARSAL_CLOCK", 1410);
    board.bus_bits = (int)number("MEMAGENT_REHEARSAL_BUS", 5120);
    board.cuda_version = (int)number("MEMAGENT_REHEARSAL_CUDA", 13000);
    board.count = board.total_bytes ? (int)number("MEMAGENT_REHEARSAL_COUNT", 1) : 0;
    if (board.count > MAX_DEVICES) board.count = MAX_DEVICES;
    const char *order = getenv("MEMAGENT_REHEARSAL_ADDRESSES");
    board.falling_addresses = order && !strcmp(order, "falling");
}

static void initialise_lock(pthread_mutex_t *lock) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(lock, &attributes);
}

static ledger *map_ledger(int file) {
    int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    ledger *mapped = mmap(NULL, sizeof *mapped, PROT_READ | PROT_WRITE, flags, file, 0);
    return mapped == MAP_FAILED ? NULL : mapped;
}

static void open_ledger(void) {
    const char *path = getenv("MEMAGENT_REHEARSAL_LEDGER");
    int file = path && *path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (file >= 0) {
        flock(file, LOCK_EX);
        if (!ftruncate(file, sizeof *book)) book = map_ledger(file);
    }
    if (path && *path && !book)
        fprintf(stderr, "memagent rehearsal: cannot share %s between processes: %s\n", path,
                strerror(errno));
    if (!book) book = map_ledger(-1);
    if (!book) abort();
    if (book->magic != LEDGER_MAGIC) {
        initialise_lock(&book->lock);
        book->magic = LEDGER_MAGIC;
    }
    if (file < 0) return;
    flock(file, LOCK_UN); /* closing would not: the mapping keeps the file open */
    close(file);
}

static void lock_book(void) {
    if (pthread_mutex_lock(&book->lock) == EOWNERDEAD) pthread_mutex_consistent(&book->lock);
}

static void unlock_book(void) { pthread_mutex_unlock(&book->lock); }

/* A child has no context until it makes one, and an entry of its own. */
static void after_fork(void) {
    own = NULL;
    memset(contexts, 0, sizeof contexts);
}

__attribute__((constructor)) static void set_up(void) {
    read_settings();
    open_ledger();
    pthread_atfork(NULL, NULL, after_fork);
}

static bool is_alive(int pid) { return pid == getpid() || !kill(pid, 0) || errno == EPERM; }

/* Drop the entries of dead processes, and return what the others hold. The lock is held. */
static uint64_t add_up(int physical) {
    uint64_t sum = board.held_bytes;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        ledger_entry *entry = &book->entries[i];
        if (entry->pid && !is_alive(entry->pid)) memset(entry, 0, sizeof *entry);
        sum += entry->used[physical];
    }
    return sum;
}

static ledger_entry *own_entry(void) {
    for (int i = 0; !own && i < MAX_PROCESSES; i++)
        if (!book->entries[i].pid || book->entries[i].pid == getpid()) own = &book->entries[i];
    if (!own) abort();
    if (own->pid != getpid()) {
        memset(own, 0, sizeof *own);
        own->pid = getpid();
    }
    return own;
}

bool board_charge(int device, uint64_t size) {
    int physical = board_physical(device);
    lock_book();
    bool fits = add_up(physical) + size <= board.total_bytes;
    if (fits) own_entry()->used[physical] += size;
    unlock_book();
    return fits;
}

void board_release(int device, uint64_t size) {
    lock_book();
    uint64_t *used = &own_entry()->used[board_physical(device)];
    *used -= size < *used ? size : *used; /* a child may free what its parent has */
    unlock_book();
}

uint64_t board_used(int physical) {
    lock_book();
    uint64_t sum = add_up(physical);
    unlock_book();
    return sum < board.total_bytes ? sum : board.total_bytes;
}

unsigned board_processes(int physical, ledger_entry *entries, unsigned room) {
    unsigned count = 0;
    lock_book();
    add_up(physical);
    for (int i = 0; i < MAX_PROCESSES; i++) {
        if (!book->entries[i].used[physical]) continue;
        if (count < room) entries[count] = book->entries[i];
        count++;
    }
    unlock_book();
    return count;
}

bool board_has(int device) { return device >= 0 && device < board_visible(); }

bool board_has_context(int device) { return board_has(device) && contexts[device]; }

void board_open_context(int device) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (!board_has(device) || __atomic_load_n(&contexts[device], __ATOMIC_ACQUIRE)) return;
    pthread_mutex_lock(&lock);
    if (!contexts[device]) {
        board_charge(device, board.context_bytes);
        __atomic_store_n(&contexts[device], true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
}

int board_current(void) { return current; }

void board_select(int device) { current = device; }

void board_uuid(unsigned char uuid[16], int physical) {
    static const unsigned char base[16] = "memagent-gpu-00";
    memcpy(uuid, base, 16);
    uuid[15] = (unsigned char)physical;
}

void board_bus(char *text, size_t room, int physical) {
    snprintf(text, room, "%08X:%02X:00.0", 0, physical + 1);
}

int board_from_bus(const char *bus) {
    unsigned domain = 0, number = 0;
    if (sscanf(bus, "%x:%x", &domain, &number) != 2) return -1;
    return (int)number - 1;
}

int board_ordinal(int physical) {
    for (int i = 0; i < board_visible(); i++)
        if (visible[i] == physical) return i;
    return -1;
}

int object_new(void **handle, size_t size) {
    *handle = calloc(1, size);
    return *handle ? OK : OUT_OF_MEMORY;
}
