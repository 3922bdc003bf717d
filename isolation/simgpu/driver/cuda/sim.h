/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the simulated libcuda share: one process's devices, contexts, streams, memory.
 *
 * One lock (sim_lock) guards all of it; it is taken before any card's lock and never held while
 * waiting for the device. Handles are pointers to structs with a tag; they are never unmapped,
 * so a stale one is told apart, not followed. Return convention: CUresult.
 */
#ifndef SIMGPU_SIM_H
#define SIMGPU_SIM_H

#include "cu.h"
#include "../hw/hw.h"

#define SIM_MAX_DEVICES 64
#define SIM_STACK 32     /* contexts pushed by one thread */
#define SIM_PARAMS 64    /* parameters of a kernel */

enum sim_tag {
    SIM_DEAD,
    SIM_CONTEXT = 0x51430001,
    SIM_STREAM,
    SIM_EVENT,
    SIM_MODULE,
    SIM_FUNCTION,
    SIM_POOL,
    SIM_PHYSICAL,
    SIM_ARRAY,
    SIM_GRAPH,
    SIM_NODE,
    SIM_EXEC,
    SIM_GREEN,
    SIM_USER_OBJECT,
};

struct sim_event;
struct sim_graph;
struct sim_node;

struct sim_host_call {
    uint64_t seq;
    cu_host_fn fn;
    void *data;
    void (*stream_fn)(void *, CUresult, void *); /* cuStreamAddCallback's form */
    void *stream;
};

struct sim_pool {
    uint32_t tag;
    int device;
    int counted; /* device memory: stands in the card's books */
    int type;    /* 1 pinned, 2 managed: that is on the card only as far as it was brought there */
    int imported;
    struct cu_location location;
    enum hw_kind kind;
    uint64_t reserved_bytes, used_bytes, reserved_high, used_high, keep_bytes, max_bytes;
    uint64_t flags[16];
    int is_default, handle_types;
};

struct sim_context {
    uint32_t tag;
    int device;
    int primary;
    unsigned flags;
    uint64_t id;
    uint64_t limit[CU_LIMITS];
    uint64_t base_bytes, limit_bytes; /* charged as context */
    uint64_t code_bytes;              /* of all its modules, charged in whole granules */
    uint64_t share;                   /* of a green context: millionths of the card; 0: all of it */
    struct sim_stream *legacy, *per_thread;
    struct sim_slab *slabs; /* with room */
    struct sim_context *next;
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

struct sim_event {
    uint32_t tag;
    struct sim_context *context;
    unsigned flags;
    int state; /* 0 never recorded, 1 pending, 2 done */
    uint64_t seq, time_ns;
    struct sim_graph *capture; /* recorded while capturing */
    struct sim_node **tips;
    size_t tip_count;
    struct sim_shared_event *shared; /* between processes: who recorded it last, and as what */
    uint64_t id;                     /* of that: its descriptor */
};

struct sim_device {
    int index; /* of the card in the hardware file */
    struct hw_card *card;
    struct hw_client *client; /* NULL until the first context */
    struct sim_context *primary;
    int primary_users;
    unsigned primary_flags;
    struct sim_context *contexts;
    struct sim_stream *streams;
    struct sim_pool pool, graph_pool, *current_pool;
    uint64_t last_default;               /* seq of the newest work in the default stream */
    struct sim_event *mark[HW_QUEUE];    /* events in the queue, by seq */
    struct sim_host_call call[HW_QUEUE]; /* host functions in the queue */
    int helper;                          /* the thread that runs them was started */
};

struct sim_symbol {
    char *name; /* of any length; never freed, as handles are */
    uint64_t bytes;
    CUdeviceptr address;
    int managed;
};

/* How long a kernel takes: a fixed figure, or one of its parameters. */
struct sim_figure {
    int given;     /* 0: not named in the image */
    int parameter; /* -1: `value` is fixed */
    uint64_t value, scale;
};

struct sim_function {
    uint32_t tag;
    struct sim_module *module;
    char *name;
    unsigned params;
    uint32_t size[SIM_PARAMS], offset[SIM_PARAMS];
    struct sim_figure ns, width;
    int per_wave; /* `ns` is for one wave of blocks */
    int fault;
    uint64_t local_bytes;
    int attribute[24];
};

struct sim_module {
    uint32_t tag;
    struct sim_context *context; /* NULL: a library */
    uint64_t bytes;              /* of the context's code */
    int opaque;                  /* any function name is accepted */
    struct sim_function **function;
    size_t functions;
    struct sim_symbol *symbol;
    size_t symbols;
    struct sim_module *loaded[SIM_MAX_DEVICES]; /* of a library: its module per device */
    void *image;                                /* of a library: what to load */
    struct sim_module *library, *next;
};

extern struct hw sim_hw;
extern struct sim_device *sim_device[SIM_MAX_DEVICES];
extern int sim_devices;

static inline const struct hw_params *sim_params(void)
{
    return &sim_hw.file->params;
}

/* init.c */
API CUresult cuDriverGetVersion(int *version);
void sim_lock(void);
void sim_unlock(void);
CUresult sim_enter(void);
void *sim_new(size_t bytes);
char *sim_text(const char *text, size_t length);

/* context.c */
CUresult sim_current(struct sim_context **context);
CUresult sim_check_context(struct sim_context *context);
CUresult sim_check_device(CUdevice device, struct sim_device **found);
CUresult sim_device_error(const struct sim_device *device);
struct sim_device *sim_device_of(const struct sim_context *context);
CUresult sim_charge(struct sim_device *device, enum hw_kind kind, uint64_t bytes);
void sim_refund(struct sim_device *device, enum hw_kind kind, uint64_t bytes);
uint64_t sim_round(uint64_t bytes, uint64_t granule);
CUresult sim_client(struct sim_device *device);
CUresult sim_make_context(int index, uint64_t bytes, struct sim_context **made);
void sim_end_context(struct sim_context *context);
CUresult sim_retain_primary(CUdevice index, struct sim_context **context);

/* submit.c */
CUresult sim_stream_of(void *handle, struct sim_stream **stream);
CUresult sim_submit(struct sim_stream *stream, struct hw_item *work, struct sim_event *mark,
                    const struct sim_host_call *call);
CUresult sim_wait(struct sim_device *device, uint64_t seq);
CUresult sim_wait_context(struct sim_device *device);
int sim_done(struct sim_device *device, uint64_t seq, CUresult *fault);
struct sim_stream *sim_make_stream(struct sim_context *context, unsigned flags, int lane);
void sim_forget_event(struct sim_event *event);

/* arena.c: addresses and the ranges behind them */
enum sim_range_kind {
    SIM_RANGE_DATA,
    SIM_RANGE_SLAB,
    SIM_RANGE_POOL,
    SIM_RANGE_GRAPH,
    SIM_RANGE_MANAGED,
    SIM_RANGE_IMPORT,
    SIM_RANGE_RESERVED, /* cuMemAddressReserve */
    SIM_RANGE_SYMBOL,
    SIM_RANGE_HOST,
};

struct sim_range {
    enum sim_range_kind kind;
    int device;
    struct sim_context *context;
    CUdeviceptr base;
    uint64_t bytes, blocks; /* as asked; of address space */
    uint64_t charged_bytes;
    enum hw_kind hw_kind;
    struct sim_pool *pool;
    struct sim_slab *slab;
    uint64_t object, generation; /* shared: entry + 1 */
    uint64_t resident_bytes;     /* managed memory on the card; counted apart from `charged_bytes` */
    uint64_t id;
    void **map; /* reserved: the physical handle of each granule */
    int touched;
    struct sim_range *next;
};

#define SIM_BLOCK (2ull << 20)
struct sim_range *sim_range_new(enum sim_range_kind kind, struct sim_context *context, uint64_t bytes);
void sim_range_end(struct sim_range *range);
struct sim_range *sim_range_at(CUdeviceptr address);
void sim_each_range(void (*visit)(struct sim_range *, void *), void *data);
int sim_in_arena(CUdeviceptr address);

/* slab.c */
CUresult sim_slab_take(struct sim_context *context, uint64_t bytes, CUdeviceptr *address);
CUresult sim_slab_give(struct sim_range *range, CUdeviceptr address);
int sim_slab_find(const struct sim_range *range, CUdeviceptr address, CUdeviceptr *base, uint64_t *bytes);
void sim_slab_end(struct sim_range *range);

/* memory.c */
CUresult sim_extent(CUdeviceptr address, CUdeviceptr *base, uint64_t *bytes, struct sim_range **range);
CUresult sim_free(struct sim_range *range);

/* pool.c */
CUresult sim_pool_take(struct sim_pool *pool, uint64_t bytes);
void sim_pool_give(struct sim_pool *pool, uint64_t bytes);
void sim_pool_trim(struct sim_pool *pool, uint64_t keep);
void sim_pools_settle(struct sim_device *device);
struct sim_pool *sim_pool_check(void *handle);
void sim_pool_init(struct sim_pool *pool, int device, enum hw_kind kind);
CUresult sim_pool_new(struct sim_pool **pool, const struct sim_pool *as, uint64_t max_bytes, int handle_types);
CUresult sim_pool_place(struct sim_pool *pool, const struct cu_location *location, int type);

/* share.c of the API: vmm.c, ipc.c */
CUresult sim_unshare(struct sim_device *device, struct sim_range *range);
CUresult sim_vmm_end(struct sim_range *range);

/* ipc.c */
void sim_event_tell(struct sim_event *event, struct sim_device *device);
int sim_event_foreign(const struct sim_event *event, const struct sim_device *device);
int sim_event_happened(const struct sim_event *event);

/* copy.c */
CUresult sim_move(CUdeviceptr to, CUdeviceptr from, uint64_t bytes);
CUresult sim_fill(CUdeviceptr to, uint64_t pitch, unsigned value, unsigned element, uint64_t width, uint64_t height);
uint64_t sim_copy_ns(const struct sim_device *device, CUdeviceptr to, CUdeviceptr from, uint64_t bytes);
CUresult sim_move3(const struct cu_copy3 *copy, uint64_t *ns);

/* image.c, module.c */
CUresult sim_image_parse(const void *image, uint32_t arch, struct sim_module *module);
uint32_t sim_arch(const struct sim_device *device);
CUresult sim_module_load(struct sim_context *context, const void *image, struct sim_module **loaded);
void sim_module_end(struct sim_module *module);
void sim_modules_end(struct sim_context *context);
struct sim_function *sim_function_check(void *handle);
struct sim_function *sim_function_find(struct sim_module *module, const char *name);

/* launch.c */
CUresult sim_cost(const struct sim_function *function, const struct sim_device *device, const unsigned grid[3],
                  const unsigned block[3], void **params, void **extra, struct hw_item *work);

/* graph.c, capture.c */
struct sim_node *sim_node_new(struct sim_graph *graph, enum cu_node type, struct sim_node *const *after,
                              size_t count);
CUresult sim_capture_unsafe(struct sim_context *context);
CUresult sim_capture_node(struct sim_stream *stream, enum cu_node type, struct sim_node **node);
CUresult sim_capture_work(struct sim_stream *stream, enum cu_node type, const struct hw_item *work);
CUresult sim_capture_record(struct sim_stream *stream, struct sim_event *event);
CUresult sim_capture_join(struct sim_stream *stream, struct sim_event *event);
void sim_stream_forget_capture(struct sim_stream *stream);

/* graph.c */
struct sim_graph *sim_graph_check(void *handle);
struct sim_graph *sim_graph_new(void);
void sim_graph_clear(struct sim_graph *graph);
struct sim_node *sim_node_check(void *handle);
void sim_node_depend(struct sim_node *node, struct sim_node *on);
CUresult sim_node_kernel(struct sim_node *node, const struct cu_kernel_node *params);
CUresult sim_exec_launch(void *handle, struct sim_stream *stream);
uint64_t sim_graph_cost(const struct sim_graph *graph, uint64_t *width);

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

/* userobject.c */
void sim_users_end(struct sim_user **users);
void sim_users_copy(struct sim_user **to, const struct sim_user *from);

#define ENTER()                          \
    do {                                 \
        CUresult entered_ = sim_enter(); \
        if (entered_)                    \
            return entered_;             \
    } while (0)

#define TRY(expression)                 \
    do {                                \
        CUresult tried_ = (expression); \
        if (tried_)                     \
            return tried_;              \
    } while (0)

static inline void sim_left(int *scope)
{
    (void)scope;
    sim_unlock();
}

static inline int sim_locked(void)
{
    sim_lock();
    return 1;
}

/* Hold the process's lock until the end of the enclosing block. */
#define LOCKED() int locked_ __attribute__((cleanup(sim_left), unused)) = sim_locked()

/* Hold a card's lock until the end of the enclosing block, with the card at the present. */
static inline void sim_card_left(struct hw_card **card)
{
    hw_unlock(*card);
}

static inline struct hw_card *sim_card_locked(struct sim_device *device)
{
    hw_lock(device->card);
    hw_advance(&sim_hw, device->card, hw_now(&sim_hw));
    return device->card;
}

#define CARD_LOCKED(device) \
    struct hw_card *card_ __attribute__((cleanup(sim_card_left), unused)) = sim_card_locked(device)

/* unseen.c */
const void *sim_export_table(const void *id);

#endif
