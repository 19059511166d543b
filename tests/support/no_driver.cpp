// A libcuda.so.1 that loads whatever it is given and runs nothing: what cuDNN wants of a driver before it makes plans
// for a GPU that is described to it. Answers to everything else say that there is no device.
namespace {
constexpr int kSuccess = 0;
constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE
int something = 0;              // what handles point to
}  // namespace

#define DTRUN_STUB(name) \
  extern "C" int name(); \
  extern "C" int name() { return kNoDevice; }
#define DTRUN_STUB_OK(name) \
  extern "C" int name();    \
  extern "C" int name() { return kSuccess; }
// Gives a handle as its first argument.
#define DTRUN_STUB_HANDLE(name)        \
  extern "C" int name(void** handle);  \
  extern "C" int name(void** handle) { \
    *handle = &something;              \
    return kSuccess;                   \
  }

DTRUN_STUB_HANDLE(cuLibraryLoadData)
DTRUN_STUB_HANDLE(cuLibraryGetKernel)
DTRUN_STUB_HANDLE(cuKernelGetFunction)
DTRUN_STUB_OK(cuLibraryUnload)
DTRUN_STUB_OK(cuKernelSetAttribute)
DTRUN_STUB_OK(cuFuncSetAttribute)

extern "C" int cuDriverGetVersion(int* version);
extern "C" int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
extern "C" int cuDeviceGetCount(int* count);
extern "C" int cuDeviceGetCount(int* count) {
  *count = 0;
  return kSuccess;
}
extern "C" int cuGetErrorString(int error, const char** text);
extern "C" int cuGetErrorString(int error, const char** text) {
  *text = error == kSuccess ? "no error" : "there is no device behind this driver";
  return kSuccess;
}
extern "C" int cuGetErrorName(int error, const char** text);
extern "C" int cuGetErrorName(int error, const char** text) { return cuGetErrorString(error, text); }

DTRUN_STUB(cuInit)
DTRUN_STUB(cuCtxGetCurrent)
DTRUN_STUB(cuCtxGetLimit)
DTRUN_STUB(cuCtxPopCurrent)
DTRUN_STUB(cuCtxPushCurrent)
DTRUN_STUB(cuStreamGetCtx)
DTRUN_STUB(cuLinkCreate)
DTRUN_STUB(cuLinkAddData)
DTRUN_STUB(cuLinkComplete)
DTRUN_STUB(cuLinkDestroy)
DTRUN_STUB(cuLaunchKernel)
DTRUN_STUB(cuLaunchKernelEx)
DTRUN_STUB(cuLaunchCooperativeKernel)
DTRUN_STUB(cuDeviceGet)
DTRUN_STUB(cuLibraryLoadFromFile)
DTRUN_STUB(cuKernelGetAttribute)
DTRUN_STUB(cuOccupancyMaxPotentialClusterSize)
