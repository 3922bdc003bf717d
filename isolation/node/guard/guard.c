// SPDX-License-Identifier: Apache-2.0
/*
 * The guard: an OCI createRuntime hook that lets a container start only if the node agent prepared it.
 *
 *     gpushare-guard <marks>
 *
 * <marks>/<container id> holds a nonce that the agent wrote before it answered the container runtime, and the mounts
 * that must be on top in the container. The start is refused unless the container's specification carries the same
 * nonce as an annotation. Then every mount is looked up inside the container's root, and bound again where a link of
 * the image or a volume of the pod has put something else above it. The mark is removed: one start for each id.
 *
 * A line `limits TAB <socket> TAB <uuid>=<bytes>,...` has the agent limit the container's memory in the kernel driver:
 * the control group exists now, and no program of the container runs yet.
 *
 * Whatever cannot be read is a refusal. Nothing else has to run, unless limits are to be set: no agent, no kubelet. What
 * is written to standard error is shown in the pod's events. OCI runtime specification 1.1: "Lifecycle" step 3,
 * "POSIX-platform Hooks" (createRuntime runs in the runtime's namespaces, after the mounts are made, before pivot_root), "State".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "json.h"
#include "limits.h"

#define ANNOTATION "gpushare.dev/start-nonce"
#define NONCE_CHARS 32
#define MAX_MOUNTS 16
enum { MAX_JSON = 16 << 20, MAX_MARK = 16 << 10, MAX_PATH = 4096, MAX_ID = 128, LONGEST_SECONDS = 10 };

static int marks = -1;
static char note[MAX_ID + sizeof ".refused"];

/* Say why, also in a file for the agent: not every runtime passes on what a hook writes. */
static _Noreturn __attribute__((format(printf, 1, 2))) void refuse(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    fprintf(stderr, "gpushare: container start refused: %s\n", text);
    int fd = *note ? openat(marks, note, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
    if (fd >= 0 && write(fd, text, strlen(text)) < 0)
        fprintf(stderr, "gpushare: cannot write %s\n", note);
    exit(1);
}

/* All of a file, ended by a zero. Larger than `most` is refused. */
static char *read_all(int fd, size_t most, const char *what, size_t *size)
{
    size_t have = 0, room = 1 << 16;
    char *text = malloc(room + 1);
    for (;;) {
        if (!text)
            refuse("out of memory");
        ssize_t got = read(fd, text + have, room - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            refuse("cannot read %s: %s", what, strerror(errno));
        if (got == 0)
            break;
        have += (size_t)got;
        if (have > most)
            refuse("%s is larger than %zu bytes", what, most);
        if (have == room)
            text = realloc(text, (room *= 2) + 1);
    }
    text[have] = 0;
    *size = have;
    return text;
}

static char *read_path(const char *path, size_t *size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        refuse("cannot open %s: %s", path, strerror(errno));
    char *text = read_all(fd, MAX_JSON, path, size);
    close(fd);
    return text;
}

static void get(const struct json *object, const char *key, char *value, size_t room, const char *what)
{
    struct json found;
    if (!json_get(object, key, &found) || !json_text(&found, value, room))
        refuse("%s has no valid field %s", what, key);
}

static long get_pid(const struct json *state)
{
    struct json found;
    long pid = 0;
    if (!json_get(state, "pid", &found) || !json_number(&found, &pid) || pid <= 0)
        refuse("the container runtime names no process of the container");
    return pid;
}

static int valid_id(const char *id)
{
    if (!*id || *id == '.')
        return 0;
    for (; *id; id++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-", *id))
            return 0;
    return 1;
}

/* The mark of this container, which is gone afterwards. Only root may have written it. */
static char *take_mark(const char *folder, const char *id)
{
    struct stat about;
    marks = open(folder, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (marks < 0 || fstat(marks, &about) || about.st_uid != 0 || (about.st_mode & 077))
        refuse("%s is not a directory of root with mode 0700", folder);
    snprintf(note, sizeof note, "%s.refused", id);
    int fd = openat(marks, id, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        refuse("the node agent did not prepare this container: it was not connected to the container runtime when the "
               "container was created; the kubelet creates it again");
    if (fstat(fd, &about) || !S_ISREG(about.st_mode) || about.st_uid != 0)
        refuse("the mark of this container is not a file of root");
    size_t size;
    char *text = read_all(fd, MAX_MARK, "the mark of this container", &size);
    close(fd);
    if (strlen(text) != size)
        refuse("the mark of this container is damaged");
    if (unlinkat(marks, id, 0))
        refuse("cannot remove the mark of this container: %s", strerror(errno));
    return text;
}

static int open_inside(int root, const char *path, uint64_t flags, uint64_t resolve)
{
    struct open_how how = {
        .flags = flags | O_CLOEXEC,
        .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | resolve,
    };
    int fd = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
    if (fd < 0 && errno == ENOSYS)
        refuse("Linux 5.12 or newer is required (openat2, mount_setattr)");
    return fd;
}

static void look(int fd, const char *path, struct statx *about)
{
    if (statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO | STATX_MNT_ID, about))
        refuse("cannot examine %s: %s", path, strerror(errno));
}

static int same_file(const struct statx *one, const struct statx *other)
{
    return one->stx_ino == other->stx_ino && one->stx_dev_major == other->stx_dev_major &&
           one->stx_dev_minor == other->stx_dev_minor;
}

/* What must be on top in the container. */
struct wanted {
    const char *source, *target;
    int writable, tree;
    struct statx ours; /* of the source */
};

static void look_at_source(struct wanted *one)
{
    if (statx(AT_FDCWD, one->source, AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_INO, &one->ours))
        refuse("cannot examine %s: %s", one->source, strerror(errno));
    if (S_ISLNK(one->ours.stx_mode) || one->ours.stx_attributes & STATX_ATTR_MOUNT_ROOT)
        refuse("%s is a link, or something is mounted over it, on the node", one->source);
}

/* A mount of what the agent prepared on the host, attached to nothing yet. */
static int detached_mount(const struct wanted *one)
{
    uint64_t read_only = one->writable ? 0 : MOUNT_ATTR_RDONLY;
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | read_only};
    unsigned flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW;
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, one->source, flags);
    if (tree < 0 || syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr))
        refuse("cannot mount %s: %s", one->source, errno == ENOSYS ? "Linux 5.12 or newer is required" : strerror(errno));
    return tree;
}

/*
 * The folder of the target, open, and in `at` and `there` what the container finds at the target.
 *
 * The folder must lie on the container's own root file system: a name in a volume can be removed by whoever shares the
 * volume, and a mount on it goes with it. A link in place of the target could be pointed elsewhere later.
 */
static int find_target(int root, const char *target, int *at, struct statx *there)
{
    char parent[MAX_PATH];
    const char *slash = strrchr(target, '/');
    if (*target != '/' || !slash[1] || strlen(target) >= sizeof parent)
        refuse("the mark of this container is damaged");
    snprintf(parent, sizeof parent, "%.*s", (int)(slash - target + 1), target);
    int within = open_inside(root, parent, O_PATH | O_DIRECTORY, RESOLVE_NO_XDEV);
    if (within < 0 && errno == EXDEV)
        refuse("a volume of the pod, or a link of the image to one, hides %s: mount the volume elsewhere", target);
    if (within < 0)
        refuse("%s cannot be reached in the container: %s", parent, strerror(errno));
    *at = open_inside(within, slash + 1, O_PATH | O_NOFOLLOW, 0);
    if (*at < 0)
        refuse("%s cannot be reached in the container: %s", target, strerror(errno));
    look(*at, target, there);
    if (S_ISLNK(there->stx_mode))
        refuse("%s is a link in the image: use an image without it", target);
    return within;
}

static int is_on_top(int root, const struct wanted *one)
{
    struct statx there;
    int at, within = find_target(root, one->target, &at, &there);
    close(at);
    close(within);
    return same_file(&there, &one->ours);
}

/* Make what the tree holds what the container finds at the target. */
static void ensure_mount(int root, const struct wanted *one)
{
    struct statx top, there;
    int at, within = find_target(root, one->target, &at, &there);
    if (!same_file(&there, &one->ours)) {
        /* What is mounted there may be a peer of a mount on the host, which must not get ours. */
        struct mount_attr apart = {.propagation = MS_PRIVATE};
        look(root, "the container's root", &top);
        if (there.stx_mnt_id != top.stx_mnt_id && syscall(SYS_mount_setattr, at, "", AT_EMPTY_PATH, &apart, sizeof apart))
            refuse("cannot set the mount of %s apart: %s", one->target, strerror(errno));
        if (syscall(SYS_move_mount, one->tree, "", at, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH))
            refuse("cannot mount over %s: %s", one->target, strerror(errno));
        if (!is_on_top(root, one))
            refuse("%s is not ours after it was mounted again", one->target);
    }
    close(at);
    close(within);
}

/* Go where the container's mounts are, which must not be where the host's are. */
static void enter_mounts(long pid)
{
    char path[64];
    struct stat theirs, ours;
    snprintf(path, sizeof path, "/proc/%ld/ns/mnt", pid);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || fstat(ns, &theirs) || stat("/proc/self/ns/mnt", &ours))
        refuse("cannot reach the container's mounts: %s", strerror(errno));
    if (theirs.st_ino == ours.st_ino)
        refuse("the container runtime gives the container no mounts of its own");
    if (setns(ns, CLONE_NEWNS))
        refuse("cannot enter the container's mounts: %s", strerror(errno));
    close(ns);
}

/* Lines of `source TAB target TAB ro|rw`. */
static void ensure_mounts(char *lines, long pid, const char *rootfs)
{
    struct wanted wanted[MAX_MOUNTS];
    int count = 0, right = 0;
    for (char *rest = lines, *line; (line = strsep(&rest, "\n"));) {
        if (!*line)
            continue;
        char *source = strsep(&line, "\t"), *target = strsep(&line, "\t");
        if (!source || !target || !line || (strcmp(line, "ro") && strcmp(line, "rw")) || count == MAX_MOUNTS)
            refuse("the mark of this container is damaged");
        wanted[count] = (struct wanted){.source = source, .target = target, .writable = !strcmp(line, "rw")};
        look_at_source(&wanted[count++]); /* of the host, so before we leave it */
    }
    int home = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC), top = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (home < 0 || top < 0)
        refuse("cannot open the node's mounts: %s", strerror(errno));
    enter_mounts(pid);
    int root = open(rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        refuse("cannot open the container's root %s: %s", rootfs, strerror(errno));
    for (int i = 0; i < count; i++)
        right += is_on_top(root, &wanted[i]);
    /* The usual case. A mount that is made and not used has the kernel wait at our end for all its readers of mounts:
     * tens of milliseconds where other containers start. */
    if (right == count)
        return;
    if (setns(home, CLONE_NEWNS) || fchdir(top) || chroot("."))
        refuse("cannot go back to the node's mounts: %s", strerror(errno));
    for (int i = 0; i < count; i++)
        wanted[i].tree = detached_mount(&wanted[i]);
    enter_mounts(pid);
    for (int i = 0; i < count; i++)
        ensure_mount(root, &wanted[i]);
}

/* Have the agent set what the line says, which is taken out of the mark. */
static void ensure_limits(char *lines, long pid, const char *id)
{
    const char *word = "limits\t";
    char *line = lines, path[64], group[MAX_PATH], answer[512];
    while (*line && strncmp(line, word, strlen(word)))
        line += strcspn(line, "\n") + (line[strcspn(line, "\n")] == '\n');
    if (!*line)
        return;
    char *end = line + strcspn(line, "\n"), *at = strndup(line, (size_t)(end - line));
    if (!at)
        refuse("out of memory");
    end += *end == '\n';
    memmove(line, end, strlen(end) + 1);
    char *rest = at;
    strsep(&rest, "\t");
    char *where = strsep(&rest, "\t");
    if (!where || !rest)
        refuse("the mark of this container is damaged");
    snprintf(path, sizeof path, "/proc/%ld/cgroup", pid);
    size_t size;
    char *groups = read_path(path, &size);
    if (!find_cgroup(groups, id, group, sizeof group))
        refuse("memory limits of the driver need cgroup version 2, and the container has no group of its own there");
    if (!ask_limits(where, id, group, rest, answer, sizeof answer))
        refuse("the node agent did not limit the container's memory in the driver: %s", answer);
    free(groups);
    free(at);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fputs("usage: gpushare-guard DIRECTORY, as a createRuntime hook: the container's state is read from standard "
              "input\n", stderr);
        return 2;
    }
    /* No timeout in the hook's own words: crun may take a hook that has ended for one that has not. */
    alarm(LONGEST_SECONDS);
    size_t size;
    char *text = read_all(STDIN_FILENO, MAX_JSON, "the container's state", &size);
    struct json state = {text, text + size}, spec, annotations, root;
    char id[MAX_ID + 1], bundle[MAX_PATH], nonce[NONCE_CHARS + 1], path[MAX_PATH + 16], rootfs[2 * MAX_PATH + 2];
    get(&state, "id", id, sizeof id, "the container's state");
    get(&state, "bundle", bundle, sizeof bundle, "the container's state");
    if (!valid_id(id))
        refuse("invalid container id");
    char *mark = take_mark(argv[1], id);

    snprintf(path, sizeof path, "%s/config.json", bundle);
    char *config = read_path(path, &size);
    spec = (struct json){config, config + size};
    if (!json_get(&spec, "annotations", &annotations) || !json_get(&annotations, ANNOTATION, &root) ||
        !json_text(&root, nonce, sizeof nonce))
        refuse("the container was created without the node agent's annotation; the kubelet creates it again");
    if (strlen(nonce) != NONCE_CHARS || strncmp(mark, nonce, NONCE_CHARS) || mark[NONCE_CHARS] != '\n')
        refuse("the container was created by another answer than the node agent's last one; the kubelet creates it "
               "again");
    if (!json_get(&spec, "root", &root))
        refuse("the container's specification has no root");
    char where[MAX_PATH];
    get(&root, "path", where, sizeof where, "the root of the container's specification");
    snprintf(rootfs, sizeof rootfs, "%s%s%s", *where == '/' ? "" : bundle, *where == '/' ? "" : "/", where);
    if (mark[NONCE_CHARS + 1])
        ensure_limits(mark + NONCE_CHARS + 1, get_pid(&state), id);
    if (mark[NONCE_CHARS + 1])
        ensure_mounts(mark + NONCE_CHARS + 1, get_pid(&state), rootfs);
    return 0;
}
