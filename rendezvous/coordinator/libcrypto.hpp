// The few functions of OpenSSL's libcrypto that a job with a token needs, loaded when the first token is read: at
// start-up the library would cost every run half a millisecond.
#pragma once

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

namespace dtrun::rendezvous {

struct Libcrypto {
  decltype(&::HMAC) hmac = nullptr;
  decltype(&::EVP_sha256) sha256 = nullptr;
  decltype(&::CRYPTO_memcmp) compare = nullptr;  // in constant time
};

// Stays loaded. Throws RendezvousError when the library is not on this machine.
const Libcrypto& libcrypto();

}  // namespace dtrun::rendezvous
