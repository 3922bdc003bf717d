/* SPDX-License-Identifier: Apache-2.0 */
/* dlsym: names of the driver and of NVML are looked at, every other call jumps on to the real one
 * with the caller's own return address: RTLD_NEXT and another preload's wrapper stay right.
 */
    .file "dlsym.S"
    .text
    .globl dlsym
    .type dlsym, %function
#if defined(__x86_64__)
dlsym:
    .cfi_startproc
    endbr64
    test    %rsi, %rsi
    jz      3f
    cmpb    $'c', (%rsi)
    jne     1f
    cmpb    $'u', 1(%rsi)
    je      2f
    jmp     3f
1:  cmpb    $'n', (%rsi)
    jne     1f
    cmpb    $'v', 1(%rsi)
    je      2f
    jmp     3f
1:  cmpb    $'d', (%rsi)
    jne     3f
    cmpb    $'l', 1(%rsi)
    jne     3f
2:  push    %rdi
    .cfi_adjust_cfa_offset 8
    push    %rsi
    .cfi_adjust_cfa_offset 8
    sub     $8, %rsp
    .cfi_adjust_cfa_offset 8
    call    gs_dlsym_lookup
    add     $8, %rsp
    .cfi_adjust_cfa_offset -8
    pop     %rsi
    .cfi_adjust_cfa_offset -8
    pop     %rdi
    .cfi_adjust_cfa_offset -8
    test    %rax, %rax
    jz      3f
    cmp     $1, %rax
    jne     1f
    xor     %eax, %eax
1:  ret
3:  mov     gs_dlsym_real(%rip), %rax
    test    %rax, %rax
    jz      4f
    jmp     *%rax
4:  push    %rdi
    .cfi_adjust_cfa_offset 8
    push    %rsi
    .cfi_adjust_cfa_offset 8
    sub     $8, %rsp
    .cfi_adjust_cfa_offset 8
    call    gs_dlsym_resolve
    add     $8, %rsp
    .cfi_adjust_cfa_offset -8
    pop     %rsi
    .cfi_adjust_cfa_offset -8
    pop     %rdi
    .cfi_adjust_cfa_offset -8
    jmp     *%rax
    .cfi_endproc
#elif defined(__aarch64__)
dlsym:
    .cfi_startproc
    cbz     x1, 3f
    ldrb    w9, [x1]
    cmp     w9, #'c'
    b.eq    1f
    cmp     w9, #'n'
    b.eq    4f
    cmp     w9, #'d'
    b.ne    3f
    ldrb    w9, [x1, #1]
    cmp     w9, #'l'
    b.eq    2f
    b       3f
1:  ldrb    w9, [x1, #1]
    cmp     w9, #'u'
    b.eq    2f
    b       3f
4:  ldrb    w9, [x1, #1]
    cmp     w9, #'v'
    b.ne    3f
2:  stp     x29, x30, [sp, #-32]!
    .cfi_adjust_cfa_offset 32
    stp     x0, x1, [sp, #16]
    bl      gs_dlsym_lookup
    mov     x9, x0
    ldp     x0, x1, [sp, #16]
    ldp     x29, x30, [sp], #32
    .cfi_adjust_cfa_offset -32
    cbz     x9, 3f
    cmp     x9, #1
    csel    x0, xzr, x9, eq
    ret
3:  adrp    x9, gs_dlsym_real
    ldr     x9, [x9, :lo12:gs_dlsym_real]
    cbz     x9, 5f
    br      x9
5:  stp     x29, x30, [sp, #-32]!
    .cfi_adjust_cfa_offset 32
    stp     x0, x1, [sp, #16]
    bl      gs_dlsym_resolve
    mov     x9, x0
    ldp     x0, x1, [sp, #16]
    ldp     x29, x30, [sp], #32
    .cfi_adjust_cfa_offset -32
    br      x9
    .cfi_endproc
#endif
    .size dlsym, . - dlsym
    .section .note.GNU-stack, "", %progbits
