/* SPDX-License-Identifier: Apache-2.0 */
/* dlopen, dlmopen and dlvsym: the call is looked at and jumps on to the real one with the caller's own return
 * address, by which the loader knows whose RUNPATH, namespace and RTLD_NEXT are meant.
 */
    .file "loader.S"
    .text
    .set DEEPBIND, 8
#if defined(__x86_64__)
/* Call `function` with the first three arguments kept. */
    .macro KEEPING function
    push    %rdi
    .cfi_adjust_cfa_offset 8
    push    %rsi
    .cfi_adjust_cfa_offset 8
    push    %rdx
    .cfi_adjust_cfa_offset 8
    call    \function
    pop     %rdx
    .cfi_adjust_cfa_offset -8
    pop     %rsi
    .cfi_adjust_cfa_offset -8
    pop     %rdi
    .cfi_adjust_cfa_offset -8
    .endm
    .macro ONWARD index
1:  mov     gs_loader_reals + 8 * \index(%rip), %rax
    test    %rax, %rax
    jz      2f
    jmp     *%rax
2:  mov     $\index, %ecx
    KEEPING gs_loader_resolve_rcx
    jmp     *%rax
    .endm
gs_loader_resolve_rcx:
    mov     %ecx, %edi
    jmp     gs_loader_resolve
    .macro BEGIN name
    .globl  \name
    .type   \name, %function
\name:
    .cfi_startproc
    endbr64
    .endm
    .macro FINISH name
    .cfi_endproc
    .size   \name, . - \name
    .endm

    BEGIN   dlopen
    test    $DEEPBIND, %esi
    jz      1f
    KEEPING gs_loader_deep
    ONWARD  0
    FINISH  dlopen

    BEGIN   dlmopen
    test    $DEEPBIND, %edx
    jz      1f
    KEEPING gs_loader_deep
    ONWARD  1
    FINISH  dlmopen

    BEGIN   dlvsym
    KEEPING gs_loader_name_rsi
    ONWARD  2
    FINISH  dlvsym
gs_loader_name_rsi:
    mov     %rsi, %rdi
    jmp     gs_dlvsym_asked
#elif defined(__aarch64__)
    .macro KEEPING function
    stp     x29, x30, [sp, #-48]!
    .cfi_adjust_cfa_offset 48
    stp     x0, x1, [sp, #16]
    str     x2, [sp, #32]
    bl      \function
    mov     x9, x0
    ldr     x2, [sp, #32]
    ldp     x0, x1, [sp, #16]
    ldp     x29, x30, [sp], #48
    .cfi_adjust_cfa_offset -48
    .endm
    .macro ONWARD index
1:  adrp    x9, gs_loader_reals
    add     x9, x9, :lo12:gs_loader_reals
    ldr     x9, [x9, #8 * \index]
    cbz     x9, 2f
    br      x9
2:  mov     w9, #\index
    KEEPING gs_loader_resolve_w9
    br      x9
    .endm
gs_loader_resolve_w9:
    mov     w0, w9
    b       gs_loader_resolve
    .macro BEGIN name
    .globl  \name
    .type   \name, %function
\name:
    .cfi_startproc
    .endm
    .macro FINISH name
    .cfi_endproc
    .size   \name, . - \name
    .endm

    BEGIN   dlopen
    tbz     w1, #3, 1f
    KEEPING gs_loader_deep
    ONWARD  0
    FINISH  dlopen

    BEGIN   dlmopen
    tbz     w2, #3, 1f
    KEEPING gs_loader_deep
    ONWARD  1
    FINISH  dlmopen

    BEGIN   dlvsym
    KEEPING gs_loader_name_x1
    ONWARD  2
    FINISH  dlvsym
gs_loader_name_x1:
    mov     x0, x1
    b       gs_dlvsym_asked
#endif
    .section .note.GNU-stack, "", %progbits
