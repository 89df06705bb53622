// SPDX-License-Identifier: Apache-2.0
//
// Steps that are predicted from others, in an object store.
#include "tests/store/remote/remote_fixture.h"
#include "tests/store/save/optimizer_training.h"

namespace varve::internal::testing {
namespace {

class RemoteReplaysTest : public RemoteTest {
 protected:
  void SetUp() override {
    RemoteTest::SetUp();
    Reset({.store = {.max_replay_depth = 16}});
    closing_options_.max_replay_depth = 16;
  }
  void SaveNext() {
    const auto hint = training_.Next();
    VARVE_ASSERT_OK(Save(hint->number, training_.states.back(), {.optimizer_step = hint}).status());
  }

  Training training_{70000, /*has_bf16=*/true};
};

TEST_F(RemoteReplaysTest, ArePushedStepByStepPulledAndReadThere) {
  for (int i = 0; i < 4; ++i) {
    SaveNext();
    MustPush();
  }
  ASSERT_EQ(GetStats().num_steps, 4u);
  VARVE_ASSERT_OK(Pull(url(), copy(), {.read_data = true}).status());
  const auto pulled = Store::OpenForReading(copy()).value();
  const auto remote = OpenRemote(url()).value();
  for (size_t i = 0; i < training_.states.size(); ++i) {
    ExpectHolds(*pulled, Training::kFirst + i, training_.states[i]);
    ExpectHolds(*remote, Training::kFirst + i, training_.states[i]);
  }
}

}  // namespace
}  // namespace varve::internal::testing
