/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, and the work that is queued on them. */
#ifndef SIMGPU_STREAM_H
#define SIMGPU_STREAM_H

#include "event.h"
#include "sim.h"

struct sim_context;
struct sim_device;
struct sim_graph;
struct sim_node;

struct sim_host_call {
    uint64_t seq;
    cu_host_fn fn;
    void *data;
    void (*stream_fn)(void *, CUresult, void *); /* cuStreamAddCallback's form */
    void *stream;
};

struct sim_stream {
    uint32_t tag;
    struct sim_context *context;
    unsigned lane, flags;
    int priority;
    uint64_t id, last;         /* seq of its newest work */
    void *green;               /* made by cuGreenCtxStreamCreate */
    struct sim_graph *capture; /* being recorded into, or NULL */
    struct sim_node **tips;    /* what the next captured node depends on */
    size_t tip_count;
    int capture_origin, capture_broken, capture_mode, capture_cig;
    const void *capture_thread; /* who began it */
    uint64_t capture_id;
    struct sim_stream *next;
};

CUresult sim_stream_of(void *handle, struct sim_stream **stream);
CUresult sim_submit(struct sim_stream *stream, struct hw_item *work, struct sim_event *mark,
                    const struct sim_host_call *call);
struct sim_stream *sim_make_stream(struct sim_context *context, unsigned flags, int lane);

#endif
