#include "rendezvous/coordinator/libcrypto.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <openssl/opensslv.h>

#include <string>

#include "rendezvous/base/error.hpp"

namespace dtrun::rendezvous {
namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) throw RendezvousError("token", fmt::format("libcrypto has no function {}", name));
}

Libcrypto load() {
  const auto name = fmt::format("libcrypto.so.{}", OPENSSL_SHLIB_VERSION);
  void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw RendezvousError("token", fmt::format("a job with a token needs {} (package libssl3): {}", name, ::dlerror()));
  Libcrypto functions;
  find(library, "HMAC", functions.hmac);
  find(library, "EVP_sha256", functions.sha256);
  find(library, "CRYPTO_memcmp", functions.compare);
  return functions;
}

}  // namespace

const Libcrypto& libcrypto() {
  static const auto functions = load();
  return functions;
}

}  // namespace dtrun::rendezvous
