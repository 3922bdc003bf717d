/* SPDX-License-Identifier: Apache-2.0 */
/* Handing work to the card and waiting for it.
 *
 * The process's lock is never held while waiting, a card's lock only for microseconds.
 * Return convention: CUresult. */
#define _GNU_SOURCE
#include "context.h"
#include "device.h"
#include "event.h"
#include "pool.h"
#include "sim.h"
#include "stream.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

enum { LONGEST_NAP_NS = 20000000 }; /* others may end sooner than they promised */

/* Wait about `ns`: sleep the long part, spin the last one. */
static void nap(uint64_t ns)
{
    uint64_t spin = sim_params()->spin_ns, end = hw_now(&sim_hw) + (ns < LONGEST_NAP_NS ? ns : LONGEST_NAP_NS);
    if (ns > spin || hw_stands(&sim_hw))
        hw_rest(&sim_hw, end - spin);
    while (hw_now(&sim_hw) < end && !hw_stands(&sim_hw))
        sched_yield();
}

/* Take what is done off the head of the queue and remember when events happened.
 * pre: both locks are held. */
static void retire(struct sim_device *device)
{
    struct hw_client *client = device->client;
    uint64_t head = client->head;
    while (head < client->tail && hw_item(client, head)->state == HW_DONE) {
        struct sim_event *event = device->mark[head % HW_QUEUE];
        if (event && event->seq == head) {
            event->time_ns = hw_item(client, head)->end_ns;
            event->state = 2;
        }
        device->mark[head % HW_QUEUE] = NULL;
        head++;
    }
    if (head != client->head) {
        hw_put(device->card, &client->head, head);
        hw_commit(device->card);
    }
}

/* An event is recorded anew or destroyed: the queue forgets it. */
void sim_forget_event(struct sim_event *event)
{
    if (event->state != 1)
        return;
    struct sim_device *device = sim_device_of(event->context);
    if (device->mark[event->seq % HW_QUEUE] == event)
        device->mark[event->seq % HW_QUEUE] = NULL;
}

/* 1 if the work is done; `*fault` tells what the client's work has left behind. */
int sim_done(struct sim_device *device, uint64_t seq, CUresult *fault)
{
    LOCKED();
    CARD_LOCKED(device);
    retire(device);
    *fault = sim_device_error(device);
    return *fault || seq < device->client->head || hw_item(device->client, seq)->state == HW_DONE;
}

/* How long to wait before asking again. */
static uint64_t estimate(struct sim_device *device, uint64_t seq)
{
    CARD_LOCKED(device);
    uint64_t ns = hw_until(device->card, device->client, seq);
    uint64_t own = (uint64_t)(device->client - device->card->client) + 1;
    if (device->card->active && device->card->active != own)
        ns = ns > 20000 ? ns : 20000; /* another's slice */
    return ns ? ns : 5000;
}

/* Wait until the work is done; the error it left, if any. */
CUresult sim_wait(struct sim_device *device, uint64_t seq)
{
    CUresult fault = CUDA_SUCCESS;
    if (!device->client || !seq)
        return device->client ? sim_device_error(device) : CUDA_SUCCESS;
    while (!sim_done(device, seq, &fault))
        nap(estimate(device, seq));
    return fault;
}

/* Wait for everything this process has queued on the device, then give surplus pool memory back. */
CUresult sim_wait_context(struct sim_device *device)
{
    CUresult fault = CUDA_SUCCESS;
    if (!device->client)
        return CUDA_SUCCESS;
    uint64_t last = __atomic_load_n(&device->client->tail, __ATOMIC_ACQUIRE) - 1;
    for (uint64_t seq = device->client->head; seq <= last && !fault; seq++)
        fault = sim_wait(device, seq);
    LOCKED();
    sim_pools_settle(device);
    return fault ? fault : sim_device_error(device);
}

/* Run a host function in order with its stream. */
static void run_call(const struct sim_host_call *call, CUresult status)
{
    if (call->fn)
        call->fn(call->data);
    if (call->stream_fn)
        call->stream_fn(call->stream, status, call->data);
}

/* The host function whose turn it is (its seq), or 0. */
static uint64_t due_call(struct sim_device *device, struct sim_host_call *call)
{
    LOCKED();
    CARD_LOCKED(device);
    struct hw_client *client = device->client;
    for (uint64_t lanes = client->busy_lanes; lanes; lanes &= lanes - 1) {
        struct hw_item *item = hw_item(client, client->lane[__builtin_ctzll(lanes)].first);
        if (item->work == HW_HOST && hw_ready(device->card, client, item)) {
            *call = device->call[item->seq % HW_QUEUE];
            return item->seq;
        }
    }
    return 0;
}

/* The thread that runs the device's host functions, as drivers keep one. */
static void *help(void *argument)
{
    struct sim_device *device = argument;
    for (;;) {
        struct sim_host_call call;
        uint64_t seq = due_call(device, &call);
        if (!seq) {
            usleep(100);
            continue;
        }
        run_call(&call, sim_device_error(device));
        CARD_LOCKED(device);
        hw_finish_host(device->card, device->client, seq, hw_now(&sim_hw));
    }
    return NULL;
}

static CUresult start_helper(struct sim_device *device)
{
    pthread_t thread;
    if (device->helper)
        return CUDA_SUCCESS;
    if (pthread_create(&thread, NULL, help, device))
        return CUDA_ERROR_OPERATING_SYSTEM;
    pthread_detach(thread);
    device->helper = 1;
    return CUDA_SUCCESS;
}

/* Order the work among streams as CUDA does: the default stream waits for all blocking ones,
 * and they for it. */
static void order(const struct sim_stream *stream, const struct sim_device *device, struct hw_item *work)
{
    work->lane = stream->lane;
    work->barrier = stream->lane == 0;
    if (!work->after && stream->lane && !(stream->flags & CU_STREAM_NON_BLOCKING))
        work->after = device->last_default;
}

/* Queue it if there is room: its seq, or 0.  pre: the process's lock is held. */
static uint64_t try_push(struct sim_stream *stream, struct hw_item *work, struct sim_event *mark,
                         const struct sim_host_call *call, CUresult *fault)
{
    struct sim_device *device = sim_device_of(stream->context);
    CARD_LOCKED(device);
    retire(device);
    uint64_t depth = sim_params()->queue_depth < HW_QUEUE ? sim_params()->queue_depth : HW_QUEUE;
    *fault = sim_device_error(device);
    if (*fault || device->client->tail - device->client->head >= depth)
        return 0;
    order(stream, device, work);
    uint64_t seq = device->client->tail;
    if (mark) {
        sim_forget_event(mark);
        mark->seq = seq;
        mark->state = 1;
        device->mark[seq % HW_QUEUE] = mark;
    }
    if (call)
        device->call[seq % HW_QUEUE] = *call;
    hw_push(device->card, device->client, work, stream->flags & CU_STREAM_NON_BLOCKING);
    stream->last = seq;
    if (stream->lane == 0)
        device->last_default = seq;
    return seq;
}

/* Queue work in a stream; where 1,024 launches are in flight, wait for room as the driver does.
 * pre: the process's lock is not held. */
CUresult sim_submit(struct sim_stream *stream, struct hw_item *work, struct sim_event *mark,
                    const struct sim_host_call *call)
{
    struct sim_device *device = sim_device_of(stream->context);
    CUresult fault = CUDA_SUCCESS;
    for (;;) {
        uint64_t head;
        {
            LOCKED();
            TRY(sim_check_context(stream->context));
            if (call)
                TRY(start_helper(device));
            if (try_push(stream, work, mark, call, &fault))
                return CUDA_SUCCESS;
            head = device->client->head;
        }
        if (fault)
            return fault;
        nap(estimate(device, head));
    }
}
