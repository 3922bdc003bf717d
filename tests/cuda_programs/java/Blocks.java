import static jcuda.driver.JCudaDriver.*;

import jcuda.driver.CUcontext;
import jcuda.driver.CUdevice;
import jcuda.driver.CUdeviceptr;
import jcuda.driver.CUresult;

/** Blocks of 64 MiB on the first card until one is refused; prints how many MiB, and whether that was "out of memory". */
public class Blocks {
    public static void main(String[] arguments) {
        CUdevice device = new CUdevice();
        CUcontext context = new CUcontext();
        check(cuInit(0));
        check(cuDeviceGet(device, 0));
        check(cuCtxCreate(context, 0, device));
        int held = 0, status;
        while ((status = cuMemAlloc(new CUdeviceptr(), 64 << 20)) == CUresult.CUDA_SUCCESS) {
            held += 64;
        }
        System.out.println(held + " " + (status == CUresult.CUDA_ERROR_OUT_OF_MEMORY));
    }

    private static void check(int status) {
        if (status != CUresult.CUDA_SUCCESS) {
            throw new IllegalStateException(CUresult.stringFor(status));
        }
    }
}
