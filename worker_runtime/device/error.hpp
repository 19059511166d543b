// Errors of an accelerator.
#pragma once

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {

// A call of the device failed, or the device is not what was asked for. The device is of no use afterwards.
class DeviceError : public Error {
  using Error::Error;
};

// There is no such accelerator here: no driver, one that is too old, or no device.
class NoDeviceError : public DeviceError {
  using DeviceError::DeviceError;
};

}  // namespace dtrun::runtime
