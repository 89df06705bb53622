// SPDX-License-Identifier: Apache-2.0
//
// The parts of the engine of S3 that need no server. conformance_test.cc has the rest.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/util.h"
#include "objects/s3/credentials.h"
#include "objects/s3/s3_objects.h"
#include "objects/s3/signature.h"
#include "objects/s3/xml.h"
#include "tests/support/temp_folder.h"

namespace varve::internal::s3 {

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kEmptySha[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// The examples of "Signature Calculations for the Authorization Header" in the manual of S3.
class SignatureTest : public ::testing::Test {
 protected:
  std::string SignatureOf(std::string_view method, std::string_view path, const Query& query,
                          Headers headers) {
    headers["host"] = "examplebucket.s3.amazonaws.com";
    headers["x-amz-date"] = "20130524T000000Z";
    const std::string value =
        Authorization({method, path, query, headers},
                      {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""},
                      "us-east-1", "20130524T000000Z");
    EXPECT_THAT(value,
                HasSubstr("Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"));
    return value.substr(value.rfind('=') + 1);
  }
};

TEST_F(SignatureTest, OfAGetOfARange) {
  EXPECT_EQ(SignatureOf("GET", "/test.txt", {},
                        {{"range", "bytes=0-9"}, {"x-amz-content-sha256", kEmptySha}}),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST_F(SignatureTest, OfAPut) {
  EXPECT_EQ(SignatureOf("PUT", "/test%24file.text", {},
                        {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                         {"x-amz-storage-class", "REDUCED_REDUNDANCY"},
                         {"x-amz-content-sha256", Sha256Hex(AsBytes("Welcome to Amazon S3."))}}),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST_F(SignatureTest, OfAParameterWithoutAValue) {
  EXPECT_EQ(SignatureOf("GET", "/", {{"lifecycle", ""}}, {{"x-amz-content-sha256", kEmptySha}}),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST_F(SignatureTest, OfAList) {
  EXPECT_EQ(SignatureOf("GET", "/", {{"max-keys", "2"}, {"prefix", "J"}},
                        {{"x-amz-content-sha256", kEmptySha}}),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(UriTest, IsEncoded) {
  EXPECT_EQ(UriEncode("aZ0-._~"), "aZ0-._~");
  EXPECT_EQ(UriEncode("a b/c+\xc3\xa9"), "a%20b%2Fc%2B%C3%A9");
  EXPECT_EQ(QueryText({{"b", "1 2"}, {"a", ""}}), "a=&b=1%202");
}

TEST(XmlTest, ElementsAndTextsAreFound) {
  constexpr char kXml[] = "<L><C><K>a&amp;b</K></C><C><K>&lt;&quot;</K></C><C>";
  const auto elements = XmlElements(kXml, "C");
  ASSERT_EQ(elements.size(), 2);
  EXPECT_EQ(XmlText(elements[0], "K"), "a&b");
  EXPECT_EQ(XmlText(elements[1], "K"), "<\"");
  EXPECT_EQ(XmlText(kXml, "absent"), "");
}

// Each test sets the environment that the engine looks at, and none of the user's.
class S3Test : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE",
          "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
          "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "http_proxy", "HTTP_PROXY"}) {
      ::unsetenv(name);
    }
    ::setenv("HOME", folder_.path().c_str(), 1);
  }
  void WriteFile(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(folder_.path() / ".aws");
    std::ofstream(folder_.path() / ".aws" / name) << text;
  }
  static Status OpenStatus(const std::string& text) {
    const auto url = ObjectsUrl::Parse(text);
    return url.ok() ? OpenS3Objects(*url, {}).status() : url.status();
  }

  testing::TempFolder folder_;
};

TEST_F(S3Test, CredentialsComeFromTheEnvironmentFirst) {
  WriteFile("credentials",
            "# mine\n[default]\naws_access_key_id = file\naws_secret_access_key=s1\n"
            "[other]\naws_access_key_id = other\naws_secret_access_key = s2=\n"
            "aws_session_token = t2\n");
  WriteFile("config",
            "[default]\nregion = eu-1\n[profile other]\nregion = eu-2\n"
            "endpoint_url = http://h:1\n");
  auto settings = FindSettings();
  ASSERT_TRUE(settings.ok()) << settings.status().ToString();
  EXPECT_EQ(settings->credentials.access_key, "file");
  EXPECT_EQ(settings->region, "eu-1");
  ::setenv("AWS_PROFILE", "other", 1);
  settings = FindSettings();
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->credentials.access_key, "other");
  EXPECT_EQ(settings->credentials.secret_key, "s2=");
  EXPECT_EQ(settings->credentials.session_token, "t2");
  EXPECT_EQ(settings->region, "eu-2");
  EXPECT_EQ(settings->endpoint, "http://h:1");
  ::setenv("AWS_ACCESS_KEY_ID", "mine", 1);
  EXPECT_THAT(FindSettings().status().message(), HasSubstr("only one is set"));
  ::setenv("AWS_SECRET_ACCESS_KEY", "s3", 1);
  settings = FindSettings();
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->credentials.access_key, "mine");
  EXPECT_EQ(settings->credentials.session_token, "");
}

TEST_F(S3Test, WhatIsWrongWithAUrlIsSaid) {
  const Status none = OpenStatus("s3://bucket/x");
  EXPECT_EQ(none.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(none.message(), HasSubstr(".aws/credentials"));
  ::setenv("AWS_ACCESS_KEY_ID", "mine", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "s3", 1);
  EXPECT_TRUE(OpenStatus("s3://bucket/x").ok());
  EXPECT_TRUE(OpenStatus("s3://a.b/x/y?endpoint=https://h:443&region=eu-1").ok());
  for (const std::string text :
       {"s3://bu_cket/x", "s3://b/a%2F%2Fb", "s3://b/a%20b", "s3://b/../c", "s3://b?key=1",
        "s3://b?endpoint=h:80", "s3://b?endpoint=http://", "s3://b?endpoint=http://u:p@h",
        "s3://b?endpoint=http://h/path", "s3://b?region=a.b"}) {
    EXPECT_EQ(OpenStatus(text).code(), StatusCode::kInvalidArgument) << text;
  }
}

// A port that takes connections and never answers, or one that nobody listens on.
class Port {
 public:
  explicit Port(bool listens) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    struct sockaddr_in address {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<struct sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<struct sockaddr*>(&address), &size), 0);
    number_ = ntohs(address.sin_port);
    if (listens) {
      EXPECT_EQ(::listen(fd_, 16), 0);
    }
  }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  ~Port() { ::close(fd_); }
  std::string url() const {
    return "s3://bucket/x?endpoint=http://127.0.0.1:" + std::to_string(number_);
  }

 protected:
  int fd() const { return fd_; }
  void Interrupt() const { ::shutdown(fd_, SHUT_RDWR); }  // of who waits for a connection

 private:
  const int fd_;
  int number_ = 0;
};

// A server that gives every request this answer.
class AnsweringPort : public Port {
 public:
  explicit AnsweringPort(const std::string& status)
      : Port(/*listens=*/true), thread_([this, status](const std::stop_token& stop) {
          while (!stop.stop_requested())
            AnswerOne("HTTP/1.1 " + status + "\r\nContent-Length: 0\r\n\r\n");
        }) {}
  ~AnsweringPort() {
    thread_.request_stop();
    Interrupt();
  }

 private:
  void AnswerOne(const std::string& answer) const {
    const int client = ::accept(fd(), nullptr, nullptr);
    if (client < 0) return;
    char request[4096];
    if (::recv(client, request, sizeof(request), 0) > 0) {
      EXPECT_EQ(::send(client, answer.data(), answer.size(), MSG_NOSIGNAL), answer.size());
    }
    ::close(client);
  }
  std::jthread thread_;
};

TEST_F(S3Test, AServerThatGaveUpWaitingLeavesTheOutcomeUnknown) {
  ::setenv("AWS_ACCESS_KEY_ID", "mine", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "hidden", 1);
  const AnsweringPort port("408 Request Timeout");
  const auto objects =
      OpenS3Objects(*ObjectsUrl::Parse(port.url()), {.retry_for = std::chrono::milliseconds(200)});
  ASSERT_TRUE(objects.ok()) << objects.status().ToString();
  const Status put = (*objects)->PutBlob("b", MemorySource(AsBytes("bytes")));
  EXPECT_EQ(put.code(), StatusCode::kUnavailable) << put.ToString();
  EXPECT_THAT(put.message(), HasSubstr("PUT blobs/b: outcome unknown after"));
  EXPECT_THAT(put.message(), HasSubstr("the server answered 408"));
}

TEST_F(S3Test, AServerThatDoesNotAnswerLeavesTheOutcomeUnknown) {
  ::setenv("AWS_ACCESS_KEY_ID", "mine", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "hidden", 1);
  const auto limits = ObjectsOptions{.timeout = std::chrono::milliseconds(900),
                                     .retry_for = std::chrono::milliseconds(100)};
  for (const bool listens : {true, false}) {
    const Port port(listens);
    const auto objects = OpenS3Objects(*ObjectsUrl::Parse(port.url()), limits);
    ASSERT_TRUE(objects.ok()) << objects.status().ToString();
    const Status put = (*objects)->PutBlob("b", MemorySource(AsBytes("bytes")));
    EXPECT_EQ(put.code(), StatusCode::kUnavailable) << put.ToString();
    EXPECT_THAT(put.message(), HasSubstr("PUT blobs/b: outcome unknown after"));
    EXPECT_THAT(put.message(), Not(HasSubstr("hidden")));
    EXPECT_EQ((*objects)->CreateRecord("r", "x").status().code(), StatusCode::kUnavailable);
  }
}

}  // namespace

}  // namespace varve::internal::s3
