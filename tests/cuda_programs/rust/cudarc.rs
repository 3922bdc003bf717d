//! Blocks of 64 MiB on the first card until one is refused; prints how many, and whether the refusal was "out of memory".

use cudarc::driver::{sys::CUresult, CudaContext};

fn main() {
    let context = CudaContext::new(0).expect("a context");
    let stream = context.default_stream();
    let mut held = Vec::new();
    let refusal = loop {
        match unsafe { stream.alloc::<u8>(64 << 20) } {
            Ok(block) => held.push(block),
            Err(error) => break error,
        }
    };
    println!("{} {}", held.len() * 64, refusal.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY);
}
