/* Pinned, mapped host memory for torch.cuda.memory.CUDAPluggableAllocator. The driver is found at run time, so this
   builds without a CUDA toolkit. Returns NULL where the driver refuses; torch then raises its usual error. */

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/types.h>

#define PORTABLE_AND_MAPPED 0x3u /* CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP */

static int (*host_alloc)(void **, size_t, unsigned int);
static int (*host_free)(void *);
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_driver(void) {
    const char *name = getenv("PLAIT_CUDA_DRIVER");
    void *driver = dlopen(name ? name : "libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (driver) {
        *(void **)&host_alloc = dlsym(driver, "cuMemHostAlloc");
        *(void **)&host_free = dlsym(driver, "cuMemFreeHost");
    }
}

void *plait_host_alloc(ssize_t size, int device, void *stream) {
    void *found = NULL;
    (void)device;
    (void)stream;
    pthread_once(&once, find_driver);
    if (!host_alloc || size <= 0 || host_alloc(&found, (size_t)size, PORTABLE_AND_MAPPED) != 0)
        return NULL;
    return found; /* unified addressing: the device uses the same pointer */
}

void plait_host_free(void *pointer, ssize_t size, int device, void *stream) {
    (void)size;
    (void)device;
    (void)stream;
    if (pointer && host_free)
        host_free(pointer);
}
