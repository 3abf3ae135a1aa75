/* One host's view of a shared folder: a FUSE pass-through whose kernel side caches as an NFS client does.
 *
 * Mounted twice over the same folder it makes two hosts, each with a page, attribute and name cache of
 * its own, on one machine and in half a second.
 *
 *     hostfs2 FOLDER MOUNTPOINT [-o attr=S,entry=S,neg=S,writeback,lock=local|none,ctl=FILE]
 *
 *   attr, entry, neg   Seconds for which the kernel trusts attributes, names and missing names.
 *   writeback          Dirty pages stay on this host until fsync or close. Aborting the connection
 *                      (/sys/fs/fuse/connections/N/abort) then loses them, as a power cut does. For the
 *                      writer's host only: with it the kernel believes its own sizes for ever.
 *   lock=local         fcntl and flock work inside one mount only (NFS nolock, Lustre localflock).
 *   lock=none          They fail with EOPNOTSUPP (Lustre without flock).
 *   ctl=FILE           Faults, one a line: OPERATION ERRNO [PERCENT [PART-OF-PATH]]; read again when it
 *                      changes. "write 28 100 data" makes each write below data/ fail with ENOSPC.
 *                      The operation `short` stores half of a write; `any` means all of them.
 *
 * Data follow close-to-open: pages are kept over an open when size and mtime are unchanged.
 * Build: gcc -O2 -o hostfs2 hostfs2.c $(pkg-config --cflags --libs fuse3)
 */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static struct {
    double attr, entry, neg;
    int writeback;
    char *lock, *ctl;
} options = {3, 30, 30, 0, NULL, NULL};

static char *folder;

/* Faults ------------------------------------------------------------------------------------- */

#define MAX_RULES 64
static struct rule {
    char operation[12], part[64];
    int error, percent;
} rules[MAX_RULES];
static int rule_count;
static struct timespec rules_mtime;
static off_t rules_size = -1;
static pthread_mutex_t rules_mutex = PTHREAD_MUTEX_INITIALIZER;

static void read_rules(void) { /* rules_mutex is held */
    struct stat st;
    if (stat(options.ctl, &st)) {
        rule_count = 0;
        rules_size = -1;
        return;
    }
    if (st.st_size == rules_size && st.st_mtim.tv_sec == rules_mtime.tv_sec &&
        st.st_mtim.tv_nsec == rules_mtime.tv_nsec)
        return;
    rules_mtime = st.st_mtim;
    rules_size = st.st_size;
    rule_count = 0;
    FILE *file = fopen(options.ctl, "r");
    char line[256];
    while (file && rule_count < MAX_RULES && fgets(line, sizeof line, file)) {
        struct rule *rule = &rules[rule_count];
        rule->percent = 100;
        rule->part[0] = 0;
        if (sscanf(line, "%11s %d %d %63s", rule->operation, &rule->error, &rule->percent, rule->part) >= 2)
            rule_count++;
    }
    if (file) fclose(file);
}

static int fault(const char *operation, const char *path) {
    int error = 0;
    if (!options.ctl) return 0;
    pthread_mutex_lock(&rules_mutex);
    read_rules();
    for (int i = 0; i < rule_count && !error; i++) {
        struct rule *rule = &rules[i];
        if (strcmp(rule->operation, operation) && strcmp(rule->operation, "any")) continue;
        if (rule->part[0] && !(path && strstr(path, rule->part))) continue;
        if (rand() % 100 < rule->percent) error = rule->error;
    }
    pthread_mutex_unlock(&rules_mutex);
    return error;
}

#define FAULT(operation, path)                      \
    do {                                            \
        int error_ = fault(operation, path);        \
        if (error_) return -error_;                 \
    } while (0)
#define FULL(name, path) \
    char name[4096];     \
    snprintf(name, sizeof name, "%s%s", folder, path)
#define ANSWER(call) return (call) == -1 ? -errno : 0

/* Files ---------------------------------------------------------------------------------------- */

static int open_backing(const char *path, int flags, mode_t mode) {
    FULL(full, path);
    /* The kernel reads whole pages before it writes parts of them, so write-only is too little. */
    int both = (flags & O_ACCMODE) == O_WRONLY ? (flags & ~O_ACCMODE) | O_RDWR : flags;
    int fd = open(full, both & ~O_APPEND, mode);
    if (fd < 0 && errno == EACCES) fd = open(full, flags & ~O_APPEND, mode);
    return fd;
}

static int host_open(const char *path, struct fuse_file_info *info) {
    FAULT("open", path);
    int fd = open_backing(path, info->flags, 0);
    if (fd < 0) return -errno;
    info->fh = fd;
    return 0;
}

static int host_create(const char *path, mode_t mode, struct fuse_file_info *info) {
    FAULT("create", path);
    int fd = open_backing(path, info->flags | O_CREAT, mode);
    if (fd < 0) return -errno;
    info->fh = fd;
    return 0;
}

static int host_read(const char *path, char *into, size_t size, off_t at, struct fuse_file_info *info) {
    FAULT("read", path);
    ssize_t done = pread(info->fh, into, size, at);
    return done < 0 ? -errno : done;
}

static int host_write(const char *path, const char *from, size_t size, off_t at, struct fuse_file_info *info) {
    if (size > 1 && fault("short", path)) size /= 2;
    FAULT("write", path);
    ssize_t done = pwrite(info->fh, from, size, at);
    return done < 0 ? -errno : done;
}

static int host_flush(const char *path, struct fuse_file_info *info) {
    FAULT("flush", path);
    int copy = dup(info->fh);
    if (copy < 0) return -errno;
    ANSWER(close(copy));
}

static int host_release(const char *path, struct fuse_file_info *info) {
    (void)path;
    close(info->fh);
    return 0;
}

static int host_fsync(const char *path, int data_only, struct fuse_file_info *info) {
    FAULT("fsync", path);
    ANSWER(data_only ? fdatasync(info->fh) : fsync(info->fh));
}

static int host_truncate(const char *path, off_t size, struct fuse_file_info *info) {
    FAULT("truncate", path);
    if (info) ANSWER(ftruncate(info->fh, size));
    FULL(full, path);
    ANSWER(truncate(full, size));
}

/* Names and attributes ------------------------------------------------------------------------- */

static int host_getattr(const char *path, struct stat *st, struct fuse_file_info *info) {
    FAULT("getattr", path);
    if (info) ANSWER(fstat(info->fh, st));
    FULL(full, path);
    ANSWER(lstat(full, st));
}

static int host_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t at,
                        struct fuse_file_info *info, enum fuse_readdir_flags flags) {
    (void)at, (void)info, (void)flags;
    FAULT("readdir", path);
    FULL(full, path);
    DIR *dir = opendir(full);
    if (!dir) return -errno;
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        struct stat st = {.st_ino = entry->d_ino, .st_mode = entry->d_type << 12};
        if (fill(buffer, entry->d_name, &st, 0, 0)) break;
    }
    closedir(dir);
    return 0;
}

static int host_unlink(const char *path) {
    FAULT("unlink", path);
    FULL(full, path);
    ANSWER(unlink(full));
}

static int host_rename(const char *old, const char *new, unsigned flags) {
    FAULT("rename", old);
    FULL(full_old, old);
    FULL(full_new, new);
    ANSWER(renameat2(AT_FDCWD, full_old, AT_FDCWD, full_new, flags));
}

static int host_link(const char *old, const char *new) {
    FULL(full_old, old);
    FULL(full_new, new);
    ANSWER(link(full_old, full_new));
}

static int host_mkdir(const char *path, mode_t mode) {
    FAULT("mkdir", path);
    FULL(full, path);
    ANSWER(mkdir(full, mode));
}

static int host_rmdir(const char *path) {
    FULL(full, path);
    ANSWER(rmdir(full));
}

static int host_symlink(const char *target, const char *path) {
    FULL(full, path);
    ANSWER(symlink(target, full));
}

static int host_readlink(const char *path, char *into, size_t size) {
    FULL(full, path);
    ssize_t length = readlink(full, into, size - 1);
    if (length < 0) return -errno;
    into[length] = 0;
    return 0;
}

static int host_chmod(const char *path, mode_t mode, struct fuse_file_info *info) {
    (void)info;
    FULL(full, path);
    ANSWER(chmod(full, mode));
}

static int host_chown(const char *path, uid_t user, gid_t group, struct fuse_file_info *info) {
    (void)info;
    FULL(full, path);
    ANSWER(lchown(full, user, group));
}

static int host_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *info) {
    (void)info;
    FULL(full, path);
    ANSWER(utimensat(AT_FDCWD, full, times, AT_SYMLINK_NOFOLLOW));
}

static int host_statfs(const char *path, struct statvfs *st) {
    FULL(full, path);
    ANSWER(statvfs(full, st));
}

static int no_lock(const char *path, struct fuse_file_info *info, int command, struct flock *lock) {
    (void)path, (void)info, (void)command, (void)lock;
    return -EOPNOTSUPP;
}

static int no_flock(const char *path, struct fuse_file_info *info, int operation) {
    (void)path, (void)info, (void)operation;
    return -EOPNOTSUPP;
}

/* The mount ------------------------------------------------------------------------------------ */

static void *host_init(struct fuse_conn_info *connection, struct fuse_config *config) {
    config->use_ino = 1;
    config->hard_remove = 1;
    config->auto_cache = 1;
    config->attr_timeout = options.attr;
    config->entry_timeout = options.entry;
    config->negative_timeout = options.neg;
    if (options.writeback && (connection->capable & FUSE_CAP_WRITEBACK_CACHE))
        connection->want |= FUSE_CAP_WRITEBACK_CACHE;
    return NULL;
}

static struct fuse_operations operations = {
    .init = host_init, .getattr = host_getattr, .open = host_open, .create = host_create,
    .read = host_read, .write = host_write, .flush = host_flush, .release = host_release,
    .fsync = host_fsync, .unlink = host_unlink, .rename = host_rename, .link = host_link,
    .mkdir = host_mkdir, .rmdir = host_rmdir, .truncate = host_truncate, .chmod = host_chmod,
    .chown = host_chown, .utimens = host_utimens, .statfs = host_statfs, .symlink = host_symlink,
    .readlink = host_readlink, .readdir = host_readdir,
};

#define OPTION(text, field, value) {text, offsetof(typeof(options), field), value}
static const struct fuse_opt known_options[] = {
    OPTION("attr=%lf", attr, 0), OPTION("entry=%lf", entry, 0), OPTION("neg=%lf", neg, 0),
    OPTION("writeback", writeback, 1), OPTION("lock=%s", lock, 0), OPTION("ctl=%s", ctl, 0),
    FUSE_OPT_END,
};

static int take_folder(void *data, const char *argument, int key, struct fuse_args *rest) {
    (void)data, (void)rest;
    if (key != FUSE_OPT_KEY_NONOPT || folder) return 1;
    folder = realpath(argument, NULL);
    return folder ? 0 : -1;
}

int main(int count, char **values) {
    struct fuse_args arguments = FUSE_ARGS_INIT(count, values);
    umask(0);
    if (fuse_opt_parse(&arguments, &options, known_options, take_folder) || !folder) {
        fprintf(stderr, "usage: hostfs2 FOLDER MOUNTPOINT [-o options]\n");
        return 2;
    }
    if (options.lock && !strcmp(options.lock, "none")) {
        operations.lock = no_lock;
        operations.flock = no_flock;
    }
    return fuse_main(arguments.argc, arguments.argv, &operations, NULL);
}
