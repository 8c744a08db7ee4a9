// Tells torch, built without CUDA, that there is one CUDA device, so that autograd takes tensors that say they lie there;
// and takes that back.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
const c10::Device the_device(c10::DeviceType::CUDA, 0);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device exchangeDevice(c10::Device) const override { return the_device; }
  c10::Device getDevice() const override { return the_device; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, the_device); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return getStream(the_device); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool hasCUDA() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex current_device() const override { return 0; }
  int getNumGPUs() const override { return 1; }
};

const Guard guard;
Hooks hooks;

void* methods_of(const void* object) { return *static_cast<void* const*>(object); }
}  // namespace

extern "C" void pretend_cuda(bool on) {
  // torch asks for its hooks once and keeps them: neither these nor ours have data, so that their methods can be swapped
  auto* kept = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  static void* const before = methods_of(kept);
  *reinterpret_cast<void**>(kept) = on ? methods_of(&hooks) : before;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].store(on ? &guard : nullptr);
}
