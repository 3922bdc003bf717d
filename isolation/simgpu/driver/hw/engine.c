/* SPDX-License-Identifier: Apache-2.0 */
/* Execution: the card's clock and what its clients compute, in discrete events up to "now".
 *
 * Nobody runs in the background: whoever looks at a card first brings it up to the present.
 * One client has the card at a time (time slices, switch cost), or all clients of one MPS server
 * together; the heads of their lanes run together and share the card once they fill it, those of
 * one client its part of the card. Copies go beside computing. The caller holds the card's lock;
 * every step is one commit.
 */
#include "hw.h"

enum { WHOLE = 1000000 }; /* width of a kernel that fills the card */

/* What the active client would do next. */
struct frame {
    uint64_t lanes; /* lanes whose head is a kernel that may run */
    uint64_t width; /* their widths together */
};

/* 1 if everything before `item` that it must wait for is done. */
int hw_ready(const struct hw_card *card, const struct hw_client *client, const struct hw_item *item)
{
    (void)card;
    if (item->after >= client->head && item->after < client->tail &&
        client->item[item->after % HW_QUEUE].state != HW_DONE)
        return 0;
    if (!item->barrier)
        return 1;
    for (uint64_t lanes = client->busy_lanes & ~client->free_lanes; lanes; lanes &= lanes - 1)
        if (client->lane[__builtin_ctzll(lanes)].first < item->seq)
            return 0;
    return 1;
}

/* The head of a lane is done at the clock: its successor moves up. */
static void finish(struct hw_card *card, struct hw_client *client, struct hw_item *item)
{
    uint64_t lane = item->lane;
    hw_put(card, &item->state, HW_DONE);
    hw_put(card, &item->end_ns, card->clock_ns);
    hw_put(card, &client->lane[lane].first, item->next);
    if (!item->next)
        hw_put(card, &client->busy_lanes, client->busy_lanes & ~(1ull << lane));
    if (!client->busy_lanes) {
        uint64_t i = (uint64_t)(client - card->client);
        hw_put(card, &card->busy[i / 64], card->busy[i / 64] & ~(1ull << i % 64));
    }
    uint64_t fault = client->fault ? 0 : item->fault;
    if (fault) {
        hw_put(card, &client->fault, fault);
        hw_report_xid(card, 31, client->pid);
    }
    hw_commit(card);
    if (fault)
        hw_spread(card, client, fault);
}

/* Start copies, end what takes no time, until nothing moves without time passing.
 * Returns the earliest end of a copy under way, or UINT64_MAX. */
static uint64_t settle(struct hw_card *card, struct hw_client *client)
{
    uint64_t next = UINT64_MAX;
    for (int moved = 1; moved;) {
        moved = 0;
        next = UINT64_MAX;
        for (uint64_t lanes = client->busy_lanes; lanes; lanes &= lanes - 1) {
            struct hw_item *item = hw_item(client, client->lane[__builtin_ctzll(lanes)].first);
            if (item->work == HW_COPY && item->state == HW_QUEUED && hw_ready(card, client, item)) {
                hw_put(card, &item->begin_ns, card->clock_ns);
                hw_put(card, &item->end_ns, card->clock_ns + item->left_ns);
                hw_put(card, &card->copy_ns, card->copy_ns + item->left_ns);
                hw_put(card, &item->state, HW_RUNNING);
                hw_commit(card);
            }
            int over = item->state == HW_RUNNING && item->work == HW_COPY && item->end_ns <= card->clock_ns;
            if (over || (item->work == HW_MARK && hw_ready(card, client, item))) {
                finish(card, client, item);
                moved = 1;
            } else if (item->work == HW_COPY && item->state == HW_RUNNING && item->end_ns < next) {
                next = item->end_ns;
            }
        }
    }
    return next;
}

/* Settle all clients with work; the earliest end of any copy. */
static uint64_t settle_all(struct hw_card *card)
{
    uint64_t next = UINT64_MAX;
    for (int word = 0; word < HW_CLIENTS / 64; word++)
        for (uint64_t set = card->busy[word]; set; set &= set - 1) {
            uint64_t end = settle(card, &card->client[word * 64 + __builtin_ctzll(set)]);
            next = end < next ? end : next;
        }
    return next;
}

/* Which kernels of the client could run now. */
static struct frame frame_of(const struct hw_card *card, const struct hw_client *client)
{
    struct frame frame = {0, 0};
    for (uint64_t lanes = client->busy_lanes; lanes; lanes &= lanes - 1) {
        int lane = __builtin_ctzll(lanes);
        const struct hw_item *item = &client->item[client->lane[lane].first % HW_QUEUE];
        if (item->work == HW_KERNEL && hw_ready(card, client, item)) {
            frame.lanes |= 1ull << lane;
            frame.width += item->width;
        }
    }
    return frame;
}

/* Who has the card when this client computes (index + 1): its MPS server, or itself. */
static uint64_t owner_of(const struct hw_card *card, uint64_t i)
{
    const struct hw_client *client = &card->client[i];
    return client->server && client->server != HW_LOST ? client->server : i + 1;
}

/* Part of the card that the client may fill. */
static uint64_t cap_of(const struct hw_client *client)
{
    return client->cap ? client->cap : UINT64_MAX;
}

/* The next of those who can have the card, from client `from` on, that could compute (index + 1), or 0. */
static uint64_t next_runnable(const struct hw_card *card, uint64_t from, uint64_t except)
{
    for (uint64_t k = 0; k < card->clients; k++) {
        uint64_t i = (from + k) % card->clients;
        if (!(card->busy[i / 64] >> i % 64 & 1)) {
            if (!card->busy[i / 64] && i % 64 == 0 && i + 64 <= card->clients)
                k += 63; /* sixty-four idle ones at once */
            continue;
        }
        uint64_t owner = owner_of(card, i);
        if (owner != except && frame_of(card, &card->client[i]).lanes)
            return owner;
    }
    return 0;
}

/* What those who compute now would do next: which clients, and the widths of their kernels together. */
struct group {
    uint64_t count, width;
    struct {
        struct hw_client *client;
        struct frame frame;
    } member[HW_CLIENTS];
};

static void add_member(struct hw_card *card, struct group *group, uint64_t i)
{
    struct hw_client *client = &card->client[i];
    struct frame frame = frame_of(card, client);
    if (!frame.lanes)
        return;
    group->member[group->count].client = client;
    group->member[group->count++].frame = frame;
    group->width += frame.width < cap_of(client) ? frame.width : cap_of(client);
}

/* The clients of whoever has the card. */
static void gather(struct hw_card *card, struct group *group)
{
    group->count = group->width = 0;
    if (!card->active)
        return;
    add_member(card, group, card->active - 1);
    for (int word = 0; word < HW_CLIENTS / 64; word++)
        for (uint64_t set = card->busy[word]; set; set &= set - 1) {
            uint64_t i = (uint64_t)word * 64 + (uint64_t)__builtin_ctzll(set);
            if (card->client[i].server == card->active)
                add_member(card, group, i);
        }
}

/* Give the card to another client, or to all of a server's; computing starts after the switch. */
static void switch_to(const struct hw_file *file, struct hw_card *card, uint64_t who)
{
    uint64_t cost = who == card->active || !card->active ? 0 : file->params.switch_ns;
    struct hw_client *client = &card->client[who - 1];
    hw_put(card, &card->active, who);
    hw_put(card, &card->rotation, who % card->clients);
    hw_put(card, &card->switch_end_ns, card->clock_ns + cost);
    hw_put(card, &card->slice_end_ns, card->clock_ns + cost + file->params.slice_ns + !file->params.slice_ns);
    hw_put(card, &client->slices, client->slices + 1);
    hw_commit(card);
}

/* How many times slower than alone on the card a member's kernels run, in millionths. */
static uint64_t crowd_of(const struct group *group, uint64_t at)
{
    uint64_t crowd = group->width > WHOLE ? group->width : WHOLE;
    uint64_t width = group->member[at].frame.width, cap = cap_of(group->member[at].client);
    return width > cap ? (uint64_t)((unsigned __int128)crowd * width / cap) : crowd;
}

/* One member computes for `passed`. */
static void run(struct hw_card *card, struct hw_client *client, struct frame frame, uint64_t crowd, uint64_t passed)
{
    uint64_t lanes = frame.lanes;
    uint64_t done = crowd == WHOLE ? passed : (uint64_t)((unsigned __int128)passed * WHOLE / crowd);
    for (; lanes; lanes &= lanes - 1) {
        struct hw_item *item = hw_item(client, client->lane[__builtin_ctzll(lanes)].first);
        if (item->state == HW_QUEUED) {
            hw_put(card, &item->begin_ns, card->clock_ns);
            hw_put(card, &item->state, HW_RUNNING);
        }
        hw_put(card, &item->left_ns, item->left_ns > done ? item->left_ns - done : 0);
    }
    hw_put(card, &client->own_ns, client->own_ns + passed);
    uint64_t filled = (uint64_t)((unsigned __int128)passed * frame.width / crowd);
    hw_put(card, &client->space_ns, client->space_ns + filled);
}

/* Compute until `until` or the first end of a kernel; the clock moves. */
static void compute(struct hw_card *card, const struct group *group, uint64_t until)
{
    uint64_t end = until;
    for (uint64_t at = 0; at < group->count; at++) {
        struct hw_client *client = group->member[at].client;
        uint64_t crowd = crowd_of(group, at);
        for (uint64_t lanes = group->member[at].frame.lanes; lanes; lanes &= lanes - 1) {
            const struct hw_item *item = hw_item(client, client->lane[__builtin_ctzll(lanes)].first);
            uint64_t need = crowd == WHOLE
                                ? item->left_ns
                                : (uint64_t)(((unsigned __int128)item->left_ns * crowd + WHOLE - 1) / WHOLE);
            end = card->clock_ns + need < end ? card->clock_ns + need : end;
        }
    }
    uint64_t passed = end - card->clock_ns;
    hw_put(card, &card->busy_ns, card->busy_ns + passed);
    for (uint64_t at = 0; at < group->count; at++)
        run(card, group->member[at].client, group->member[at].frame, crowd_of(group, at), passed);
    hw_put(card, &card->clock_ns, end);
    hw_commit(card);
    for (uint64_t at = 0; at < group->count; at++) {
        struct hw_client *client = group->member[at].client;
        for (uint64_t lanes = group->member[at].frame.lanes; lanes; lanes &= lanes - 1) {
            struct hw_item *item = hw_item(client, client->lane[__builtin_ctzll(lanes)].first);
            if (!item->left_ns && client->busy_lanes >> __builtin_ctzll(lanes) & 1) /* a fault drops others' work */
                finish(card, client, item);
        }
    }
}

/* One event: settle, choose who computes, move the clock to at most `until`. */
static void step(const struct hw_file *file, struct hw_card *card, uint64_t until)
{
    uint64_t copy_end = settle_all(card);
    until = copy_end < until ? copy_end : until;
    struct group group;
    gather(card, &group);
    uint64_t other = next_runnable(card, card->rotation, card->active);
    int over = card->clock_ns >= card->slice_end_ns;
    if (other && (!group.count || over)) {
        switch_to(file, card, other);
        return;
    }
    if (group.count && over) {
        hw_put(card, &card->slice_end_ns, card->clock_ns + file->params.slice_ns);
        hw_commit(card);
    }
    if (!group.count || card->clock_ns < card->switch_end_ns) {
        uint64_t end = group.count && card->switch_end_ns < until ? card->switch_end_ns : until;
        hw_put(card, &card->clock_ns, end);
        hw_commit(card);
        return;
    }
    if (other && card->slice_end_ns < until)
        until = card->slice_end_ns;
    compute(card, &group, until);
}

/* Round to the quantum NVML shows. */
static uint64_t percent_of(uint64_t part, uint64_t whole, uint64_t quantum)
{
    uint64_t percent = whole ? part * 100 / whole : 0;
    percent = percent > 100 ? 100 : percent;
    return quantum > 1 ? percent / quantum * quantum : percent;
}

/* Whether the client has computed since the last sample. */
static int computed(const struct hw_client *client)
{
    return client->state == HW_LIVE && client->own_ns != client->sampled_ns;
}

/* The client that has this period's only sample, or `clients`: any of those that computed, however much each did. */
static uint64_t named(const struct hw_card *card, uint64_t draw)
{
    uint64_t those = 0;
    for (uint64_t i = 0; i < card->clients; i++)
        those += (uint64_t)computed(&card->client[i]);
    for (uint64_t i = 0, left = those ? draw % those : 0; i < card->clients; i++)
        if (computed(&card->client[i]) && left-- == 0)
            return i;
    return card->clients;
}

/* Write one utilisation sample of every client and of the card, as NVML keeps them. */
static void sample(const struct hw_file *file, struct hw_card *card, uint64_t span)
{
    const struct hw_params *p = &file->params;
    uint64_t only = p->sample_shared ? named(card, hw_random(card)) : 0;
    for (uint64_t i = 0; i < card->clients; i++) {
        struct hw_client *client = &card->client[i];
        if (!computed(client))
            continue;
        uint64_t own = p->sample_shared ? card->busy_ns - card->sampled_busy_ns : client->own_ns - client->sampled_ns;
        uint64_t percent = percent_of(own, span, p->sample_quantum);
        hw_put(card, &client->sampled_ns, client->own_ns);
        if (!(p->sample_shared && i != only) && hw_random(card) % 1000 >= p->sample_missing_permille) {
            uint64_t at = client->samples % HW_SAMPLES;
            hw_put(card, &client->sample[at].time_ns, card->clock_ns);
            hw_put(card, &client->sample[at].percent, percent);
            hw_put(card, &client->samples, client->samples + 1);
        }
        hw_commit(card);
    }
    uint64_t at = card->samples % HW_SAMPLES;
    uint64_t load = percent_of(card->busy_ns - card->sampled_busy_ns, span, 1);
    uint64_t mw = card->model.idle_mw + (card->model.limit_mw - card->model.idle_mw) * load / 100;
    uint64_t goal = 32000 + 45000 * load / 100; /* thousandths of a degree */
    hw_put(card, &card->sample[at].time_ns, card->clock_ns);
    hw_put(card, &card->sample[at].percent, load);
    hw_put(card, &card->sample[at].memory_percent, percent_of(card->copy_ns - card->sampled_copy_ns, span, 1));
    hw_put(card, &card->samples, card->samples + 1);
    hw_put(card, &card->sampled_busy_ns, card->busy_ns);
    hw_put(card, &card->sampled_copy_ns, card->copy_ns);
    hw_put(card, &card->energy_uj, card->energy_uj + mw * (span / 1000) / 1000);
    hw_put(card, &card->temperature_mc, (card->temperature_mc * 15 + goal) / 16);
    hw_put(card, &card->sample_at_ns, card->clock_ns + p->sample_ns);
    hw_commit(card);
}

/* Nothing is queued: pass over a long idle time without a sample for each period. */
static void skip_idle(const struct hw_file *file, struct hw_card *card, uint64_t now)
{
    uint64_t span = file->params.sample_ns * HW_SAMPLES;
    if (now < card->clock_ns + 2 * span)
        return;
    for (int word = 0; word < HW_CLIENTS / 64; word++)
        if (card->busy[word])
            return;
    uint64_t skipped = now - span - card->clock_ns;
    hw_put(card, &card->energy_uj, card->energy_uj + card->model.idle_mw * (skipped / 1000) / 1000);
    hw_put(card, &card->clock_ns, now - span);
    hw_put(card, &card->sample_at_ns, now - span + file->params.sample_ns);
    hw_commit(card);
}

/* Bring the card to the present and look for the dead.  pre: the card's lock is held. */
void hw_advance(struct hw *hw, struct hw_card *card, uint64_t now)
{
    const struct hw_file *file = hw->file;
    if (!card->sample_at_ns) {
        hw_put(card, &card->clock_ns, now);
        hw_put(card, &card->sample_at_ns, now + file->params.sample_ns);
        hw_commit(card);
    }
    skip_idle(file, card, now);
    while (card->clock_ns < now) {
        uint64_t until = card->sample_at_ns < now ? card->sample_at_ns : now;
        if (card->clock_ns < until)
            step(file, card, until);
        if (card->clock_ns >= card->sample_at_ns)
            sample(file, card, file->params.sample_ns);
    }
    settle_all(card);
    hw_reap(hw, card, now, 0);
}

/* Queue one piece of work; its seq.  pre: the queue has room, the card is at the present.
 * `free_lane`: the lane does not wait for the default stream. */
uint64_t hw_push(struct hw_card *card, struct hw_client *client, const struct hw_item *work, int free_lane)
{
    uint64_t seq = client->tail, lane = work->lane, i = (uint64_t)(client - card->client);
    struct hw_item *item = hw_item(client, seq);
    *item = *work; /* beyond the tail: nobody reads it yet */
    item->seq = seq;
    item->next = 0;
    item->state = HW_QUEUED;
    uint64_t bit = 1ull << lane;
    if (client->busy_lanes & bit) {
        struct hw_item *last = hw_item(client, client->lane[lane].last);
        hw_put(card, &last->next, seq);
    } else {
        hw_put(card, &client->lane[lane].first, seq);
        hw_put(card, &client->busy_lanes, client->busy_lanes | bit);
        hw_put(card, &card->busy[i / 64], card->busy[i / 64] | 1ull << i % 64);
    }
    hw_put(card, &client->lane[lane].last, seq);
    hw_put(card, &client->free_lanes, free_lane ? client->free_lanes | bit : client->free_lanes & ~bit);
    if (work->work == HW_KERNEL)
        hw_put(card, &client->launches, client->launches + 1);
    if (work->work == HW_COPY)
        hw_put(card, &client->copies, client->copies + 1);
    hw_put(card, &client->tail, seq + 1);
    hw_commit(card);
    return seq;
}

/* The host function at the head of its lane has returned. */
void hw_finish_host(struct hw_card *card, struct hw_client *client, uint64_t seq, uint64_t now)
{
    struct hw_item *item = hw_item(client, seq);
    if (item->seq != seq || item->state == HW_DONE || item->work != HW_HOST)
        return;
    if (card->clock_ns < now)
        hw_put(card, &card->clock_ns, now);
    finish(card, client, item);
}

static uint64_t until_done(const struct hw_card *card, const struct hw_client *client, uint64_t seq, int depth);

/* What must pass before `item` may start, apart from its own lane. */
static uint64_t until_ready(const struct hw_card *card, const struct hw_client *client, const struct hw_item *item,
                            int depth)
{
    uint64_t longest = 0;
    if (!depth)
        return 0;
    if (item->after >= client->head && item->after < client->tail)
        longest = until_done(card, client, item->after, depth - 1);
    for (uint64_t lanes = item->barrier ? client->busy_lanes & ~client->free_lanes : 0; lanes; lanes &= lanes - 1) {
        uint64_t last = client->lane[__builtin_ctzll(lanes)].last;
        uint64_t wait = last < item->seq ? until_done(card, client, last, depth - 1) : 0;
        longest = wait > longest ? wait : longest;
    }
    return longest;
}

static uint64_t until_done(const struct hw_card *card, const struct hw_client *client, uint64_t seq, int depth)
{
    uint64_t lane = client->item[seq % HW_QUEUE].lane, total = 0;
    uint64_t at = client->busy_lanes >> lane & 1 ? client->lane[lane].first : 0;
    while (at && at <= seq) {
        const struct hw_item *item = &client->item[at % HW_QUEUE];
        uint64_t wait = until_ready(card, client, item, depth);
        total = wait > total ? wait : total;
        if (item->work == HW_COPY && item->state == HW_RUNNING)
            total += item->end_ns > card->clock_ns ? item->end_ns - card->clock_ns : 0;
        else if (item->work == HW_KERNEL || item->work == HW_COPY)
            total += item->left_ns;
        at = item->next;
    }
    return total;
}

/* The item cannot be done earlier than this from the card's clock: what is queued before it,
 * as if no other client computed. */
uint64_t hw_until(const struct hw_card *card, const struct hw_client *client, uint64_t seq)
{
    return until_done(card, client, seq, 3);
}

/* Forget everything that the client has queued. */
void hw_drop_work(struct hw_card *card, struct hw_client *client)
{
    uint64_t i = (uint64_t)(client - card->client);
    hw_put(card, &client->busy_lanes, 0);
    hw_put(card, &client->head, client->tail);
    hw_put(card, &card->busy[i / 64], card->busy[i / 64] & ~(1ull << i % 64));
    if (card->active == i + 1)
        hw_put(card, &card->active, 0);
    hw_commit(card);
}

/* Record an XID, as the kernel log and NVML events would tell it. */
void hw_report_xid(struct hw_card *card, uint64_t xid, uint64_t pid)
{
    uint64_t at = card->xids % HW_XIDS;
    hw_put(card, &card->xid[at].time_ns, card->clock_ns);
    hw_put(card, &card->xid[at].xid, xid);
    hw_put(card, &card->xid[at].pid, pid);
    hw_put(card, &card->xids, card->xids + 1);
    hw_commit(card);
}
