// SPDX-License-Identifier: Apache-2.0
#include "store/remote/remote_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random_number.h"
#include "store/remote/owner.h"

namespace varve::internal {

namespace {

using ::testing::HasSubstr;

RemoteState MakeState() {
  RemoteState state;
  state.number = 12;
  state.store_id = {1, 2};
  state.next_snapshot = 8;
  state.snapshots = {{5, 1000, 99, {"ab-1-x", 7, 30, {3, 4}}}, {7, 2000, 100, {"b", 0, 1, {5, 6}}}};
  state.open = {{0xabcdef, "boot/1/2/3"}};
  return state;
}

SnapshotBody MakeBody() {
  SnapshotBody body;
  body.format.store_id = {1, 2};
  body.format.digest_seed = ~uint64_t{0};
  body.manifest_name = "MANIFEST-000012";
  body.manifest = std::string("a\nend x\0\n", 9);
  body.tables = {{"000007.sst", "u01", {"b", 5, 6, {7, 8}}},
                 {"000008.sst", "d02", {"c", 0, 0, {}}}};
  return body;
}

TEST(RemoteStateTest, AStateComesBack) {
  const RemoteState state = MakeState();
  const auto read = DecodeRemoteState(EncodeRemoteState(state), "here");
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->number, state.number);
  EXPECT_EQ(read->store_id, state.store_id);
  EXPECT_EQ(read->next_snapshot, state.next_snapshot);
  EXPECT_EQ(read->snapshots, state.snapshots);
  EXPECT_EQ(read->open, state.open);
  EXPECT_TRUE(read->IsOpen(0xabcdef));
  EXPECT_FALSE(read->IsOpen(1));
  EXPECT_EQ(read->Find(7)->total_bytes, 100);
  EXPECT_EQ(read->Find(6), nullptr);
}

TEST(RemoteStateTest, ABodyComesBack) {
  const SnapshotBody body = MakeBody();
  const auto read = DecodeSnapshotBody(EncodeSnapshotBody(body), "here");
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->format.digest_seed, body.format.digest_seed);
  EXPECT_EQ(read->manifest_name, body.manifest_name);
  EXPECT_EQ(read->manifest, body.manifest);
  ASSERT_EQ(read->tables.size(), 2);
  EXPECT_EQ(read->tables[0].where, body.tables[0].where);
  EXPECT_EQ(read->FindIdentity("d02")->name, "000008.sst");
  EXPECT_EQ(read->FindIdentity("d03"), nullptr);
}

TEST(RemoteStateTest, EveryDamagedByteIsFound) {
  const std::string state = EncodeRemoteState(MakeState()), body = EncodeSnapshotBody(MakeBody());
  for (size_t i = 0; i < state.size(); ++i) {
    std::string damaged = state;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_EQ(DecodeRemoteState(damaged, "here").status().code(), StatusCode::kCorruption) << i;
    EXPECT_EQ(DecodeRemoteState(state.substr(0, i), "here").status().code(),
              StatusCode::kCorruption);
  }
  for (size_t i = 0; i < body.size(); ++i) {
    std::string damaged = body;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_EQ(DecodeSnapshotBody(damaged, "here").status().code(), StatusCode::kCorruption) << i;
    EXPECT_EQ(DecodeSnapshotBody(body.substr(0, i), "here").status().code(),
              StatusCode::kCorruption);
  }
  EXPECT_THAT(DecodeRemoteState("varve remote state 2\n", "here").status().message(),
              HasSubstr("a newer varve"));
}

// Whoever can write to the object store can make a right digest.
TEST(RemoteStateTest, NamesThatLeaveTheFolderAreRefused) {
  for (const std::string name : {"../x.sst", "a/b.sst", "x", ".sst\t", "/x.sst"}) {
    SnapshotBody body = MakeBody();
    body.tables[0].name = name;
    EXPECT_EQ(DecodeSnapshotBody(EncodeSnapshotBody(body), "here").status().code(),
              StatusCode::kCorruption)
        << name;
  }
  SnapshotBody body = MakeBody();
  body.manifest_name = "MANIFEST-/../x";
  EXPECT_EQ(DecodeSnapshotBody(EncodeSnapshotBody(body), "here").status().code(),
            StatusCode::kCorruption);
}

TEST(RemoteStateTest, NamesSortAsNumbers) {
  EXPECT_LT(StateName(9), StateName(10));
  EXPECT_LT(StateName(10), StateName(~uint64_t{0}));
  EXPECT_EQ(ParseStateName(StateName(~uint64_t{0})), ~uint64_t{0});
  for (const std::string name : {"state-", "state-1", "state-0000000000000000001x", "beat-1"}) {
    EXPECT_EQ(ParseStateName(name), std::nullopt) << name;
  }
  EXPECT_EQ(ParseNoteName(NoteName(12)), 12);
  EXPECT_EQ(ParseNoteName(StateName(12)), std::nullopt);
  EXPECT_EQ(ParseStateName(NoteName(12)), std::nullopt);
  const std::string blob = BlobName(0x12, "u34");
  const auto parts = ParseBlobName(blob);
  ASSERT_TRUE(parts.has_value());
  EXPECT_EQ(parts->attempt, 0x12);
  EXPECT_EQ(parts->content, "u34");
  EXPECT_EQ(ParseBlobName("x" + blob), std::nullopt);
  EXPECT_EQ(ParseBlobName(blob + "-"), std::nullopt);
  EXPECT_EQ(ParseBlobName("mine.txt"), std::nullopt);
}

TEST(OwnerTest, OnlyWhatIsCertainIsAbandoned) {
  const uint64_t id = RandomNumber();
  const std::string mine = DescribeOwner();
  EXPECT_TRUE(IsAbandoned({id, mine}));
  {
    const AttemptUnderWay under_way(id);
    EXPECT_FALSE(IsAbandoned({id, mine}));
  }
  EXPECT_TRUE(IsAbandoned({id, mine + "1"}));  // another process that had this number
  EXPECT_FALSE(IsAbandoned({id, "elsewhere" + mine}));
  EXPECT_FALSE(IsAbandoned({id, "nobody"}));
}

}  // namespace

}  // namespace varve::internal
