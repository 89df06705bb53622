// SPDX-License-Identifier: Apache-2.0
#include "objects/s3/signature.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>

#include "base/util.h"

namespace varve::internal::s3 {

namespace {

constexpr char kHex[] = "0123456789abcdef";
constexpr char kUpperHex[] = "0123456789ABCDEF";
constexpr size_t kShaBytes = 32;
using Sha = std::array<unsigned char, kShaBytes>;

std::string ToHexText(const Sha& sha) {
  std::string text;
  for (const unsigned char byte : sha) {
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  return text;
}

EVP_MD_CTX* Context(void* context) { return static_cast<EVP_MD_CTX*>(context); }

Sha Hmac(std::string_view key, std::string_view text) {
  Sha sha{};
  unsigned size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), sha.data(), &size);
  return sha;
}

std::string_view AsText(const Sha& sha) {
  return {reinterpret_cast<const char*>(sha.data()), sha.size()};
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  EVP_DigestInit_ex(Context(context_), EVP_sha256(), nullptr);
}

Sha256::~Sha256() { EVP_MD_CTX_free(Context(context_)); }

void Sha256::Add(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(Context(context_), bytes.data(), bytes.size());
}

std::string Sha256::FinishHex() {
  Sha sha{};
  unsigned size = 0;
  EVP_DigestFinal_ex(Context(context_), sha.data(), &size);
  return ToHexText(sha);
}

std::string Sha256Hex(std::span<const std::byte> bytes) {
  Sha256 sha;
  sha.Add(bytes);
  return sha.FinishHex();
}

std::string UriEncode(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    const bool is_plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~';
    if (is_plain) {
      encoded += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded += '%';
    encoded += kUpperHex[byte >> 4];
    encoded += kUpperHex[byte & 15];
  }
  return encoded;
}

std::string QueryText(const Query& query) {
  std::map<std::string, std::string> encoded;  // the order is that of the encoded names
  for (const auto& [name, value] : query) encoded.emplace(UriEncode(name), UriEncode(value));
  std::string text;
  for (const auto& [name, value] : encoded) {
    text += (text.empty() ? "" : "&") + name + "=" + value;
  }
  return text;
}

std::string Authorization(const SignedRequest& request, const Credentials& credentials,
                          std::string_view region, std::string_view time) {
  std::string canonical = std::string(request.method) + "\n" + std::string(request.path) + "\n" +
                          QueryText(request.query) + "\n";
  std::string names;
  for (const auto& [name, value] : request.headers) {
    canonical += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
  }
  const auto payload = request.headers.find("x-amz-content-sha256");
  canonical += "\n" + names + "\n" + (payload == request.headers.end() ? "" : payload->second);

  const std::string day(time.substr(0, 8));
  const std::string scope = day + "/" + std::string(region) + "/s3/aws4_request";
  const std::string text = "AWS4-HMAC-SHA256\n" + std::string(time) + "\n" + scope + "\n" +
                           Sha256Hex(AsBytes(canonical));
  std::string secret = "AWS4" + credentials.secret_key;
  Sha key = Hmac(secret, day);
  OPENSSL_cleanse(secret.data(), secret.size());
  key = Hmac(AsText(key), region);
  key = Hmac(AsText(key), "s3");
  key = Hmac(AsText(key), "aws4_request");
  return "AWS4-HMAC-SHA256 Credential=" + credentials.access_key + "/" + scope +
         ",SignedHeaders=" + names + ",Signature=" + ToHexText(Hmac(AsText(key), text));
}

}  // namespace varve::internal::s3
