// SPDX-License-Identifier: Apache-2.0
//
// What an object store answers, and the URL that names one.
#include <string>

#include "objects/s3/xml.h"
#include "objects/url.h"
#include "tests/fuzz/targets.h"

namespace varve::internal::fuzz {
namespace {

void ReadXml(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  size_t bytes = 0;
  for (const std::string_view element : s3::XmlElements(exact.text(), "Contents")) {
    bytes += element.size();
    Require(s3::XmlText(element, "Key").size() <= element.size());
  }
  Require(bytes <= input.size());  // they do not overlap
  Require(s3::XmlText(exact.text(), "NextContinuationToken").size() <= input.size());
}

void ReadUrl(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  const auto url = ObjectsUrl::Parse(exact.text());
  if (!url.ok()) return;
  Require(LooksLikeUrl(exact.text()) && url->text == exact.text());
  Require((url->place + url->path).find('\0') == std::string::npos);  // a path would end there
  for (const auto& [name, value] : url->query) Require(name.size() + value.size() <= input.size());
}

}  // namespace

std::vector<FuzzTarget> ObjectTargets() {
  return {
      {"s3_xml",
       ReadXml,
       {"<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a/b&amp;c</Key><Size>12"
        "</Size></Contents><Contents><Key>d</Key></Contents><NextContinuationToken>1ueGcxLPR"
        "</NextContinuationToken></ListBucketResult>"}},
      {"object_url",
       ReadUrl,
       {"s3://bucket/prefix/run1?endpoint=https%3A%2F%2Fhost%3A9000&region=eu", "file:///a%20b",
        "rados://pool/namespace"}}};
}

}  // namespace varve::internal::fuzz
