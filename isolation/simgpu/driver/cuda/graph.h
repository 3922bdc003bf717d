/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs, their nodes, and streams that are captured into them. */
#ifndef SIMGPU_GRAPH_H
#define SIMGPU_GRAPH_H

#include "event.h"
#include "sim.h"
#include "stream.h"

struct sim_user_object;

struct sim_node {
    uint32_t tag;
    enum cu_node type;
    struct sim_graph *graph;
    struct sim_node **after;
    size_t afters;
    uint64_t id;
    struct hw_item work;            /* kernel, memcpy, memset: what it costs */
    struct cu_kernel_node kernel;   /* as given, parameters not kept */
    struct cu_copy3 copy;
    struct cu_memset_node fill;
    struct cu_host_node host;
    struct sim_event *event;
    struct sim_graph *child;
    uint64_t bytes;                 /* memory nodes */
    CUdeviceptr pointer;
    struct sim_node *original, *next;
    uint64_t finish_ns;             /* while an exec is made: end on the critical path */
    int disabled;
};

struct sim_user { /* references that a graph holds to an object of the program's */
    struct sim_user_object *object;
    uint64_t count;
    struct sim_user *next;
};

struct sim_graph {
    uint32_t tag;
    struct sim_node *first, *last;
    int capturing; /* streams are being recorded into it */
    size_t nodes;
    uint64_t id;
    struct sim_user *users;
};

struct sim_node *sim_node_new(struct sim_graph *graph, enum cu_node type, struct sim_node *const *after,
                              size_t count);
CUresult sim_capture_unsafe(struct sim_context *context);
CUresult sim_capture_node(struct sim_stream *stream, enum cu_node type, struct sim_node **node);
CUresult sim_capture_work(struct sim_stream *stream, enum cu_node type, const struct hw_item *work);
CUresult sim_capture_record(struct sim_stream *stream, struct sim_event *event);
CUresult sim_capture_join(struct sim_stream *stream, struct sim_event *event);
void sim_stream_forget_capture(struct sim_stream *stream);

struct sim_graph *sim_graph_check(void *handle);
struct sim_graph *sim_graph_new(void);
void sim_graph_clear(struct sim_graph *graph);
struct sim_node *sim_node_check(void *handle);
void sim_node_depend(struct sim_node *node, struct sim_node *on);
CUresult sim_node_kernel(struct sim_node *node, const struct cu_kernel_node *params);
CUresult sim_exec_launch(void *handle, struct sim_stream *stream);
uint64_t sim_graph_cost(const struct sim_graph *graph, uint64_t *width);

void sim_users_end(struct sim_user **users);
void sim_users_copy(struct sim_user **to, const struct sim_user *from);

#endif
