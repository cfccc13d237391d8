#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

/*
 * Preloaded by scripts/device on Mesa's driver for the processor: buffers are not destroyed.
 *
 * llama.cpp has one layout of 12 buffers for all shaders, and writes those alone that a shader reads; a set used before
 * goes on naming buffers that are gone, which Vulkan allows. Mesa 22.3.6 counts these uses too, in memory that others
 * have by then.
 */

typedef void (*function)(void);
typedef function (*lookup)(void *, const char *);

static void keep(void * device, void * buffer, const void * allocator) {
    (void)device;
    (void)buffer;
    (void)allocator;
}

function vkGetDeviceProcAddr(void * device, const char * name) {
    const lookup next = (lookup)dlsym(RTLD_NEXT, "vkGetDeviceProcAddr");
    return strcmp(name, "vkDestroyBuffer") == 0 ? (function)keep : next(device, name);
}

function vkGetInstanceProcAddr(void * instance, const char * name) {
    const lookup next = (lookup)dlsym(RTLD_NEXT, "vkGetInstanceProcAddr");
    return strcmp(name, "vkDestroyBuffer") == 0       ? (function)keep
           : strcmp(name, "vkGetDeviceProcAddr") == 0 ? (function)vkGetDeviceProcAddr
                                                      : next(instance, name);
}
