// SPDX-License-Identifier: Apache-2.0
//
// varve view: looks at a store in the browser.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/guarded.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "cli/parse.h"
#include "cli/view/guard.h"
#include "cli/view/http_server.h"
#include "cli/view/inspector.h"
#include "varve/stop.h"

namespace varve::internal::cli {
namespace {

struct ViewOptions {
  std::string port;
  bool open = false;
};

// Says that the view shall end: a signal has come, or somebody has called End. All threads that
// start after it was made leave these signals to it.
class EndSignals {
 public:
  EndSignals() {
    ::sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction now {};
      ::sigaction(signal, nullptr, &now);
      // nohup ignores SIGHUP, and a shell ignores Ctrl-C for what it runs in the background.
      if (now.sa_handler != SIG_IGN) ::sigaddset(&signals_, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::jthread([this](const std::stop_token& end) { Wait(end); });
  }

  const std::atomic<bool>* came() const { return &came_; }
  void Await() { came_.wait(false); }
  void End() {
    came_ = true;
    came_.notify_all();
  }

 private:
  void Wait(const std::stop_token& end) {
    constexpr timespec kLook{.tv_sec = 0, .tv_nsec = 100'000'000};
    while (!end.stop_requested()) {
      if (::sigtimedwait(&signals_, nullptr, &kLook) < 0) continue;
      End();
      return;
    }
  }

  sigset_t signals_{};
  std::atomic<bool> came_{false};
  std::jthread thread_;
};

// Ends the view when the server ends, also by an exception.
class AtEnd {
 public:
  explicit AtEnd(EndSignals* signals) : signals_(signals) {}
  ~AtEnd() { signals_->End(); }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;

 private:
  EndSignals* const signals_;
};

// Starts the browser of the desktop, which must not get the signals of this process.
void StartBrowser(const std::string& url) {
  const pid_t child = ::fork();
  if (child == 0) {
    sigset_t none;
    ::sigemptyset(&none);
    ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
    if (::setsid() < 0 || ::fork() != 0) ::_exit(0);  // so that nobody has to wait for it
    ::dup2(STDERR_FILENO, STDOUT_FILENO);             // the URL alone goes to standard output
    ::execlp("xdg-open", "xdg-open", url.c_str(), static_cast<char*>(nullptr));
    constexpr std::string_view kMissing =
        "varve: --open found no xdg-open: open the URL yourself\n";
    (void)!::write(STDERR_FILENO, kMissing.data(), kMissing.size());
    ::_exit(1);
  }
  if (child > 0) ::waitpid(child, nullptr, 0);
}

void Announce(const Context& context, const std::string& url) {
  if (context.json()) {
    context.PrintJson({{"url", url}});
  } else {
    context.PrintText(url + "\n");
  }
  std::fflush(stdout);
  context.Note("showing the store there until Ctrl-C; whoever has the URL can read all of it");
}

// Makes this thread, and all that it starts, leave the processor to whoever trains here. It has no
// effect on other threads.
void GiveWay() {
  constexpr int kNice = 10;
  ::setpriority(PRIO_PROCESS, /*who=*/0, std::max(kNice, ::getpriority(PRIO_PROCESS, 0)));
}

Status Serve(const Context& context, const std::string& path, uint16_t port, bool open) {
  EndSignals end;  // threads of the store start while it is opened
  const auto open_store = [&context, path](std::optional<uint64_t> snapshot) {
    return context.OpenForReading(path, snapshot);
  };
  std::unique_ptr<Inspector> inspector;
  {
    const StopScope scope(end.came());
    VARVE_ASSIGN_OR_RETURN(inspector, Inspector::Make(path, open_store));
  }
  VARVE_ASSIGN_OR_RETURN(const std::string token, MakeToken());
  std::unique_ptr<Guard> guard;  // is made when the port is known, which is before any request
  const auto answer = [&guard, &inspector](const HttpRequest& request) -> HttpResponse {
    Guard::Verdict verdict = guard->Examine(request);
    if (verdict.response) return *std::move(verdict.response);
    return inspector->Respond(verdict.path, request.parameters);
  };
  VARVE_ASSIGN_OR_RETURN(const auto server, HttpServer::Bind(port, answer));
  guard = std::make_unique<Guard>(token, server->port());
  std::string entrance;
  if (open) {
    VARVE_ASSIGN_OR_RETURN(std::string secret, MakeToken());
    entrance = guard->MakeEntrance(std::move(secret));
  }
  std::promise<Status> started;
  std::future<Status> has_started = started.get_future();
  std::future<Status> served = std::async(std::launch::async, [&] {
    const AtEnd at_end(&end);
    GiveWay();
    Status start = server->StartThreads();
    const bool is_started = start.ok();
    started.set_value(std::move(start));
    if (!is_started) return Status::Ok();
    inspector->PrepareNewest();
    return server->Run();
  });
  VARVE_RETURN_IF_ERROR(has_started.get());
  const Status announced = Guarded("view", [&] {
    Announce(context, guard->url());
    if (open) StartBrowser(entrance);
    end.Await();
    return Status::Ok();
  });
  inspector->Stop();
  server->Stop();
  const Status run = served.get();
  return announced.ok() ? run : announced;
}

Outcome RunView(const Context& context, const ViewOptions& options) {
  std::string path;
  if (Outcome outcome = context.StoreOrUrl(&path); !outcome.ok()) return outcome;
  uint64_t port = 0;
  if (!options.port.empty()) {
    const auto parsed = ParseNumber("--port", options.port, UINT16_MAX);
    if (!parsed.ok()) return parsed.status();
    port = *parsed;
  }
  return OpenOutcome(Serve(context, path, static_cast<uint16_t>(port), options.open));
}

constexpr char kViewNotes[] =
    R"(Prints a URL and shows the store there until Ctrl-C: its runs, the space that it
takes, each step, each tensor, and what differs between steps. It only reads,
and a writer may go on. The page shows a new step when it is asked for again.

Only this machine reaches the URL, at 127.0.0.1. It holds a secret, so that
other users and other web pages get nothing. Do not pass it on. To look from
another machine, forward the port under the same number:
ssh -L PORT:127.0.0.1:PORT.

JSON: url)";

}  // namespace

void AddView(CLI::App& app, Context& context) {
  auto options = std::make_shared<ViewOptions>();
  CLI::App* verb = app.add_subcommand("view", "Look at the store in a browser");
  verb->add_option("--port", options->port, "The port to use, by default any free one")
      ->type_name("PORT");
  verb->add_flag("--open", options->open, "Also start the browser of the desktop");
  verb->footer(kViewNotes);
  context.OnAnything(verb, [&context, options] { return RunView(context, *options); });
}

}  // namespace varve::internal::cli
