/* SPDX-License-Identifier: Apache-2.0 */
/* Strict variant: a forwarder found no target yet. Keeps every argument register, asks for the
 * target of the index in r11 (x16) and jumps there.
 */
    .file "forward.S"
#ifdef GS_STRICT_HOOK
    .text
    .globl gs_forward
    .hidden gs_forward
    .type gs_forward, %function
#if defined(__x86_64__)
gs_forward:
    push    %rdi
    push    %rsi
    push    %rdx
    push    %rcx
    push    %r8
    push    %r9
    sub     $136, %rsp
    movups  %xmm0, (%rsp)
    movups  %xmm1, 16(%rsp)
    movups  %xmm2, 32(%rsp)
    movups  %xmm3, 48(%rsp)
    mov     %r11d, %edi
    call    gs_forward_resolve
    movups  (%rsp), %xmm0
    movups  16(%rsp), %xmm1
    movups  32(%rsp), %xmm2
    movups  48(%rsp), %xmm3
    add     $136, %rsp
    pop     %r9
    pop     %r8
    pop     %rcx
    pop     %rdx
    pop     %rsi
    pop     %rdi
    jmp     *%rax
#elif defined(__aarch64__)
gs_forward:
    stp     x29, x30, [sp, #-144]!
    stp     x0, x1, [sp, #16]
    stp     x2, x3, [sp, #32]
    stp     x4, x5, [sp, #48]
    stp     x6, x7, [sp, #64]
    stp     q0, q1, [sp, #80]
    stp     q2, q3, [sp, #112]
    mov     w0, w16
    bl      gs_forward_resolve
    mov     x16, x0
    ldp     x0, x1, [sp, #16]
    ldp     x2, x3, [sp, #32]
    ldp     x4, x5, [sp, #48]
    ldp     x6, x7, [sp, #64]
    ldp     q0, q1, [sp, #80]
    ldp     q2, q3, [sp, #112]
    ldp     x29, x30, [sp], #144
    br      x16
#endif
    .size gs_forward, . - gs_forward
#endif
    .section .note.GNU-stack, "", %progbits
