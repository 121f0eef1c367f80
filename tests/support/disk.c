// Counts the changes that a process makes to files below a folder. Before a chosen one it kills the process; it can also
// write all of them to a log, from which `disk.py` computes what a loss of power leaves. Loaded with LD_PRELOAD.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char root[PATH_MAX];
static long changes, kill_at;
static int log_handle = -1;
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

// `folder` has no link in it. kill_at = 0 kills never; an empty log writes none.
void watch_disk(const char *folder, long at, const char *log) {
  static int (*real_open)(const char *, int, ...);
  real_open = REAL(open);
  snprintf(root, sizeof root, "%s", folder);
  changes = 0;
  kill_at = at;
  log_handle = *log ? real_open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
}

long disk_changes(void) { return changes; }

static int below(const char *path) {
  size_t length = strlen(root);
  return length && !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

static int place(int folder, const char *path, char *found) {
  char base[PATH_MAX] = "";
  if (path[0] != '/') {
    char link[64];
    if (folder == AT_FDCWD) {
      if (!getcwd(base, sizeof base)) return 0;
    } else {
      snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
      ssize_t length = readlink(link, base, sizeof base - 1);
      if (length < 0) return 0;
      base[length] = 0;
    }
    strncat(base, "/", sizeof base - strlen(base) - 1);
  }
  snprintf(found, PATH_MAX, "%s%s", base, path);
  return below(found);
}

static int of_handle(int handle, char *found) {
  char link[64];
  struct stat about;
  if (!*root || handle < 0 || handle == log_handle || fstat(handle, &about)) return 0;
  if (!S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
  ssize_t length = readlink(link, found, PATH_MAX - 1);
  if (length < 0) return 0;
  found[length] = 0;
  return below(found);
}

static void put(const void *bytes, size_t length) {
  static ssize_t (*real_write)(int, const void *, size_t);
  if (!real_write) real_write = REAL(write);
  for (const char *next = bytes; length;) {
    ssize_t wrote = real_write(log_handle, next, length);
    if (wrote <= 0) abort();
    next += wrote, length -= wrote;
  }
}

// One record: kind, length of two names and of the data, the offset; then names and data.
static void change(char kind, const char *first, const char *second, int64_t offset, const void *data, uint64_t length) {
  pthread_mutex_lock(&one);
  if (++changes == kill_at) kill(getpid(), SIGKILL);
  if (log_handle >= 0) {
    uint32_t names[2] = {(uint32_t)strlen(first), (uint32_t)strlen(second)};
    put(&kind, 1), put(names, sizeof names), put(&length, sizeof length), put(&offset, sizeof offset);
    put(first, names[0]), put(second, names[1]), put(data, data ? length : 0);
  }
  pthread_mutex_unlock(&one);
}

// What is going to fail is no change.
static int has_folder(const char *path) {
  char above[PATH_MAX];
  snprintf(above, sizeof above, "%s", path);
  char *slash = strrchr(above, '/');
  if (slash) *slash = 0;
  return !faccessat(AT_FDCWD, above, F_OK, 0);
}

static void opening(int folder, const char *path, int flags) {
  char found[PATH_MAX];
  if (!*root || !(flags & (O_CREAT | O_TRUNC)) || !place(folder, path, found)) return;
  int exists = !faccessat(AT_FDCWD, found, F_OK, 0);
  if (exists ? flags & O_EXCL : !has_folder(found)) return;
  if (!exists || (flags & O_TRUNC)) change(exists ? 't' : 'c', found, "", 0, 0, 0);
}

#define OPEN(name)                                                                  \
  int name(const char *path, int flags, ...) {                                      \
    va_list rest;                                                                   \
    va_start(rest, flags);                                                          \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;         \
    va_end(rest);                                                                   \
    opening(AT_FDCWD, path, flags);                                                 \
    return REAL(name)(path, flags, mode);                                           \
  }
#define OPENAT(name)                                                                \
  int name(int folder, const char *path, int flags, ...) {                          \
    va_list rest;                                                                   \
    va_start(rest, flags);                                                          \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;         \
    va_end(rest);                                                                   \
    opening(folder, path, flags);                                                   \
    return REAL(name)(folder, path, flags, mode);                                   \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

static void writing(int handle, const void *data, size_t length, int64_t offset) {
  char found[PATH_MAX];
  if (!of_handle(handle, found)) return;
  if (offset < 0) {
    struct stat about;
    int appends = fcntl(handle, F_GETFL) & O_APPEND;
    offset = appends && !fstat(handle, &about) ? about.st_size : lseek(handle, 0, SEEK_CUR);
  }
  change('w', found, "", offset, data, length);
}

ssize_t write(int handle, const void *data, size_t length) {
  writing(handle, data, length, -1);
  return REAL(write)(handle, data, length);
}
ssize_t pwrite(int handle, const void *data, size_t length, off_t offset) {
  writing(handle, data, length, offset);
  return REAL(pwrite)(handle, data, length, offset);
}
ssize_t pwrite64(int handle, const void *data, size_t length, off64_t offset) {
  writing(handle, data, length, offset);
  return REAL(pwrite64)(handle, data, length, offset);
}

#define ON_HANDLE(name, kind, parameters, arguments, offset) \
  int name parameters {                                      \
    char found[PATH_MAX];                                    \
    if (of_handle(handle, found)) change(kind, found, "", offset, 0, 0); \
    return REAL(name) arguments;                             \
  }
ON_HANDLE(ftruncate, 's', (int handle, off_t length), (handle, length), length)
ON_HANDLE(ftruncate64, 's', (int handle, off64_t length), (handle, length), length)

// With the bytes of the file, because some libraries write without the C library.
static void syncing(int handle) {
  char found[PATH_MAX], link[64];
  struct stat about;
  if (!of_handle(handle, found)) return;
  char *bytes = 0;
  uint64_t length = 0;
  if (log_handle >= 0 && !fstat(handle, &about) && S_ISREG(about.st_mode)) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    int reader = REAL(open)(link, O_RDONLY | O_CLOEXEC);
    bytes = malloc(about.st_size + 1);
    while (length < (uint64_t)about.st_size) {
      ssize_t got = pread(reader, bytes + length, about.st_size - length, length);
      if (got <= 0) abort();
      length += got;
    }
    close(reader);
  }
  change('f', found, "", 0, bytes, length);
  free(bytes);
}
int fsync(int handle) {
  syncing(handle);
  return REAL(fsync)(handle);
}
int fdatasync(int handle) {
  syncing(handle);
  return REAL(fdatasync)(handle);
}

static void renaming(int from, const char *old, int to, const char *new) {
  char first[PATH_MAX], second[PATH_MAX];
  if (*root && place(from, old, first) && place(to, new, second)) change('r', first, second, 0, 0, 0);
}
int rename(const char *old, const char *new) {
  renaming(AT_FDCWD, old, AT_FDCWD, new);
  return REAL(rename)(old, new);
}
int renameat(int from, const char *old, int to, const char *new) {
  renaming(from, old, to, new);
  return REAL(renameat)(from, old, to, new);
}

static void at_path(char kind, int folder, const char *path) {
  char found[PATH_MAX] = "";
  int existed = *root && place(folder, path, found) && !faccessat(AT_FDCWD, found, F_OK, AT_SYMLINK_NOFOLLOW);
  if (*root && below(found) && existed == (kind == 'u') && has_folder(found)) change(kind, found, "", 0, 0, 0);
}
int unlink(const char *path) {
  at_path('u', AT_FDCWD, path);
  return REAL(unlink)(path);
}
int rmdir(const char *path) {
  at_path('u', AT_FDCWD, path);
  return REAL(rmdir)(path);
}
int unlinkat(int folder, const char *path, int flags) {
  at_path('u', folder, path);
  return REAL(unlinkat)(folder, path, flags);
}
int mkdir(const char *path, mode_t mode) {
  at_path('m', AT_FDCWD, path);
  return REAL(mkdir)(path, mode);
}
int mkdirat(int folder, const char *path, mode_t mode) {
  at_path('m', folder, path);
  return REAL(mkdirat)(folder, path, mode);
}
