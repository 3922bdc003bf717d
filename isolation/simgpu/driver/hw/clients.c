/* SPDX-License-Identifier: Apache-2.0 */
/* Clients: which process uses a card, and how many bytes it has.
 *
 * The caller holds the card's lock. Bytes are physical (whole granules).
 * Return convention: 0 or an index on success, a negative errno otherwise. */
#define _GNU_SOURCE
#include "hw.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LONGEST_WAIT_NS 1000000000ull /* for memory of the dead; a longer teardown is there to be seen */

/* What stands behind `prefix` on the first line of a /proc/self file that begins with it. */
static void own_text(const char *path, const char *prefix, char *text, size_t size)
{
    memset(text, 0, size);
    char raw[2048];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = read(fd, raw, sizeof raw - 1);
    close(fd);
    raw[n > 0 ? n : 0] = 0;
    for (char *line = raw; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        if (strncmp(line, prefix, strlen(prefix)))
            continue;
        const char *from = line + strlen(prefix);
        size_t length = strcspn(from, "\n");
        memcpy(text, from, length < size ? length : size - 1);
        return;
    }
}

/* An entry to write on: a new one, or the longest gone where many are. */
static int spare_client(struct hw_card *card)
{
    int oldest = -1, gone = 0;
    for (uint64_t i = 0; i < card->clients; i++) {
        const struct hw_client *client = &card->client[i];
        if (client->state == HW_FREE)
            return (int)i;
        if (client->state != HW_GONE)
            continue;
        gone++;
        if (oldest < 0 || client->gone_ns < card->client[oldest].gone_ns)
            oldest = (int)i;
    }
    return gone < HW_HISTORY && card->clients < HW_CLIENTS ? (int)card->clients : oldest;
}

/* Register this process with the card; its index, or -EUSERS where the card is full of clients, or as hw_serve. */
int hw_attach(struct hw *hw, struct hw_card *card)
{
    int index = spare_client(card);
    if (index < 0) {
        hw_reap(hw, card, hw_now(hw), 1);
        index = spare_client(card);
    }
    if (index < 0)
        return -EUSERS;
    struct hw_client *client = &card->client[index];
    uint64_t tail = client->tail < 1 ? 1 : client->tail; /* seqs go on: old ones stay in the past */
    memset(client, 0, offsetof(struct hw_client, item));
    client->head = client->tail = tail;
    own_text("/proc/self/comm", "", client->name, sizeof client->name);
    own_text("/proc/self/cgroup", "0::", client->cgroup, sizeof client->cgroup);
    hw_cgroup_own(client->groups, client->cgroup);
    client->process = hw->process;
    client->generation = hw->generation;
    client->pid = hw->file->process[hw->process].pid;
    client->start_time = hw->file->process[hw->process].start_time;
    client->born_ns = hw_now(hw);
    int refused = hw->mps.pid ? hw_serve(hw, card, client) : 0;
    if (refused)
        return refused;
    if (card->clients < (uint64_t)index + 1)
        hw_put(card, &card->clients, (uint64_t)index + 1);
    hw_put(card, &client->state, HW_LIVE);
    hw_commit(card);
    return index;
}

/* The limit that is set for a control group, or NULL. */
struct hw_limit *hw_limit_of(struct hw_card *card, uint64_t group)
{
    for (int i = 0; i < HW_LIMITS; i++)
        if (card->limit[i].used && card->limit[i].group == group)
            return &card->limit[i];
    return NULL;
}

static int within(const struct hw_client *client, uint64_t group)
{
    for (int i = 0; i < HW_DEPTH && client->groups[i]; i++)
        if (client->groups[i] == group)
            return 1;
    return 0;
}

/* Bytes that all processes under the limit have together. */
uint64_t hw_limit_used(const struct hw_card *card, const struct hw_limit *limit)
{
    uint64_t used = 0;
    for (uint64_t i = 0; i < card->clients; i++)
        if (card->client[i].total_bytes && within(&card->client[i], limit->group))
            used += card->client[i].total_bytes;
    return used;
}

/* Bytes the client could still get, and (optionally) the total that it is shown. dmem bounds a group by all above it;
 * the driver's own limits do not nest: the nearest one counts. */
uint64_t hw_free_bytes(const struct hw *hw, const struct hw_card *card, const struct hw_client *client,
                       uint64_t *total)
{
    uint64_t size = card->model.total_bytes - card->model.reserved_bytes;
    uint64_t free = size > card->used_bytes ? size - card->used_bytes : 0;
    uint64_t mode = hw->file->params.memacct;
    struct hw_answer answer;
    if (client && client->limit_bytes) {
        uint64_t room = client->limit_bytes > client->total_bytes ? client->limit_bytes - client->total_bytes : 0;
        free = room < free ? room : free;
        size = client->limit_bytes < size ? client->limit_bytes : size;
    }
    if (client && hw_owned(hw)) {
        int error = hw_ask(hw, card, HW_ROOM, 0, 0, -1, &answer);
        if (total)
            *total = error || answer.b > size ? size : answer.b;
        return error ? 0 : answer.a < free ? answer.a : free;
    }
    for (int i = 0; client && mode && i < HW_DEPTH && client->groups[i]; i++) {
        const struct hw_limit *limit = hw_limit_of((struct hw_card *)card, client->groups[i]);
        if (!limit || limit->hard_bytes == HW_NO_LIMIT)
            continue;
        uint64_t used = hw_limit_used(card, limit);
        uint64_t room = limit->hard_bytes > used ? limit->hard_bytes - used : 0;
        free = room < free ? room : free;
        size = limit->hard_bytes < size ? limit->hard_bytes : size;
        if (mode == 1)
            break;
    }
    if (total)
        *total = size;
    return free;
}

/* When all memory of the dead is back, if that makes room for `bytes`; 0: it does not. */
static uint64_t room_at(const struct hw *hw, const struct hw_card *card, const struct hw_client *client, uint64_t bytes)
{
    uint64_t coming = 0, back = 0;
    for (uint64_t i = 0; i < card->clients; i++) {
        const struct hw_client *dead = &card->client[i];
        if (dead->state != HW_TEARDOWN)
            continue;
        coming += dead->total_bytes;
        back = dead->back_ns > back ? dead->back_ns : back;
    }
    return bytes <= hw_free_bytes(hw, card, client, NULL) + coming ? back : 0;
}

/* Return what the dead have.  A driver frees under its lock, so that whoever needs that memory waits for it; a clock
 * that stands is not waited for under a lock: the memory comes back as if the teardown were over. */
static void wait_for_the_dead(struct hw *hw, struct hw_card *card, struct hw_client *client, uint64_t bytes)
{
    uint64_t now = hw_now(hw);
    hw_reap(hw, card, now, 1);
    if (bytes <= hw_free_bytes(hw, card, client, NULL))
        return;
    uint64_t back = room_at(hw, card, client, bytes);
    if (back <= now || back - now > LONGEST_WAIT_NS)
        return;
    while (!hw_stands(hw) && hw_now(hw) < back)
        hw_rest(hw, back);
    hw_reap(hw, card, back, 1);
}

/* Move `bytes` into the client's books; -ENOMEM (and one denial) where the card or a limit is full.
 * Nobody is denied for the sake of the dead, however late their death is noticed. */
int hw_charge(struct hw *hw, struct hw_card *card, struct hw_client *client, enum hw_kind kind, uint64_t bytes)
{
    if (bytes > hw_free_bytes(hw, card, client, NULL)) {
        wait_for_the_dead(hw, card, client, bytes);
        if (bytes > hw_free_bytes(hw, card, client, NULL)) {
            hw_put(card, &client->denied, client->denied + 1);
            hw_commit(card);
            return -ENOMEM;
        }
    }
    struct hw_answer answer;
    if (hw_owned(hw) && hw_ask(hw, card, HW_CHARGE, bytes, 0, -1, &answer)) {
        hw_put(card, &client->denied, client->denied + 1);
        hw_commit(card);
        return -ENOMEM;
    }
    hw_put(card, &client->bytes[kind], client->bytes[kind] + bytes);
    hw_put(card, &client->total_bytes, client->total_bytes + bytes);
    if (client->total_bytes > client->peak_bytes)
        hw_put(card, &client->peak_bytes, client->total_bytes);
    hw_put(card, &card->used_bytes, card->used_bytes + bytes);
    if (card->used_bytes > card->peak_bytes)
        hw_put(card, &card->peak_bytes, card->used_bytes);
    hw_commit(card);
    return 0;
}

/* Tell the owner of the hardware; what the dead had it takes back by itself. */
void hw_give_back(const struct hw *hw, const struct hw_card *card, const struct hw_client *client, uint64_t bytes)
{
    struct hw_answer answer;
    if (hw_owned(hw) && client->process == hw->process && client->generation == hw->generation)
        hw_ask(hw, card, HW_REFUND, bytes, 0, -1, &answer);
}

/* Give `bytes` back to the card.  pre: they were charged to this client as this kind. */
void hw_refund(struct hw *hw, struct hw_card *card, struct hw_client *client, enum hw_kind kind, uint64_t bytes)
{
    hw_give_back(hw, card, client, bytes);
    hw_put(card, &client->bytes[kind], client->bytes[kind] - bytes);
    hw_put(card, &client->total_bytes, client->total_bytes - bytes);
    hw_put(card, &card->used_bytes, card->used_bytes - bytes);
    hw_commit(card);
}

/* The client's process is gone: its work stops now, its memory comes back after the teardown. */
static void bury(struct hw *hw, struct hw_card *card, struct hw_client *client, uint64_t now)
{
    hw_drop_work(card, client);
    hw_server_gone(card, client);
    hw_put(card, &client->state, HW_TEARDOWN);
    hw_put(card, &client->gone_ns, now);
    hw_put(card, &client->back_ns, now + hw->file->params.teardown_ns);
    hw_commit(card);
}

/* All of a client's bytes go back; its entry stays for the books. */
static void settle(struct hw *hw, struct hw_card *card, struct hw_client *client)
{
    hw_drop_all(hw, card, client);
    for (int kind = 0; kind < HW_KINDS; kind++)
        if (client->bytes[kind])
            hw_refund(hw, card, client, (enum hw_kind)kind, client->bytes[kind]);
    hw_put(card, &client->contexts, 0);
    hw_put(card, &client->managed_bytes, 0);
    hw_put(card, &client->state, HW_GONE);
    hw_commit(card);
}

/* Find the dead, at most every `reap_ns` unless forced, and return what is due. */
void hw_reap(struct hw *hw, struct hw_card *card, uint64_t now, int force)
{
    if (!force && now < card->reaped_ns + hw->file->params.reap_ns)
        return;
    hw_put(card, &card->reaped_ns, now);
    hw_commit(card);
    int probe = hw_probe_open(hw);
    for (uint64_t i = 0; i < card->clients; i++) {
        struct hw_client *client = &card->client[i];
        if (client->state == HW_LIVE && !hw_process_lives(hw, probe, client))
            bury(hw, card, client, now);
        if (client->state == HW_TEARDOWN && now >= client->back_ns)
            settle(hw, card, client);
    }
    hw_sweep_exports(hw, card, probe);
    if (probe >= 0)
        close(probe);
}
