/* A driver of yesterday, for test_engine.py: libcuda.so.1 as far as the CUDA runtime looks before it turns away. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

enum { SUCCESS = 0, NOT_FOUND = 500, VERSION = 9020 };

int cuInit(unsigned flags);
int cuDriverGetVersion(int* version);
int cuDeviceGetCount(int* count);
int cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags);
int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags,
                        int* status);

int cuInit(unsigned flags) {
  (void)flags;
  return SUCCESS;
}

int cuDriverGetVersion(int* version) {
  *version = VERSION;
  return SUCCESS;
}

int cuDeviceGetCount(int* count) {
  *count = 1;
  return SUCCESS;
}

int cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags) {
  (void)version;
  (void)flags;
  void* const self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  *function = self != NULL && *name != '\0' ? dlsym(self, name) : NULL;
  return *function != NULL ? SUCCESS : NOT_FOUND;
}

int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags,
                        int* status) {
  const int result = cuGetProcAddress(name, function, version, flags);
  if (status != NULL) *status = result != SUCCESS;
  return result;
}
