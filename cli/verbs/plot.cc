// SPDX-License-Identifier: Apache-2.0
#include "cli/verbs/plot.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "cli/print.h"
#include "cli/svg.h"

namespace varve::internal::cli {
namespace {

using Anchor = Svg::Anchor;

constexpr double kWidth = 900;
constexpr double kLeft = 190;   // of all axes
constexpr double kRight = 780;  // labels stand to the right of it
constexpr double kRowHeight = 26;
constexpr double kBarHeight = 14;
constexpr double kChartHeight = 220;
constexpr double kZeroGap = 24;  // between "0" and the smallest power of two
constexpr size_t kMaxMarks = 60;
constexpr size_t kMaxLabel = 24;

// Shapes differ in more than colour: stored is a full line or a hatched bar, logical a dashed line
// or a hollow bar.
constexpr char kStyle[] = R"(
text { font: 12px sans-serif; fill: #222 }
.title { font: bold 18px sans-serif }
.head { font: bold 14px sans-serif }
.note { font: 11px sans-serif; fill: #555 }
.axis { stroke: #222; stroke-width: 1 }
.grid { stroke: #ddd; stroke-width: 1 }
.stored { stroke: #1b4965; stroke-width: 2; fill: none }
.stored-mark { fill: #1b4965 }
.logical { stroke: #b5651d; stroke-width: 2; stroke-dasharray: 6 4; fill: none }
.logical-mark { stroke: #b5651d; stroke-width: 2; fill: #fff }
.full { stroke: #1b4965; stroke-width: 1; fill: url(#hatch) }
.hollow { stroke: #b5651d; stroke-width: 1; fill: #fff }
)";
constexpr char kHatch[] =
    R"(<pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse">)"
    R"(<rect width="5" height="5" fill="#cfe0ea"/>)"
    R"(<path d="M-1,1 L1,-1 M0,5 L5,0 M4,6 L6,4" stroke="#1b4965" stroke-width="1.4"/></pattern>)";

// Returns "1 KiB" instead of "1.0 KiB".
std::string TickLabel(double bytes) {
  std::string label = HumanBytes(static_cast<uint64_t>(bytes));
  if (const size_t zero = label.find(".0 "); zero != std::string::npos) label.erase(zero, 2);
  return label;
}

// Cuts a long name in the middle.
std::string Shortened(const std::string& name) {
  if (name.size() <= kMaxLabel) return name;
  // In UTF-8, bytes 10xxxxxx continue a character. Neither part may start or end inside a
  // character.
  const auto continues = [&name](size_t i) {
    return (static_cast<unsigned char>(name[i]) >> 6) == 2;
  };
  size_t head = kMaxLabel / 2;
  size_t tail = name.size() - kMaxLabel / 2 + 1;
  while (head > 0 && continues(head)) --head;
  while (tail < name.size() && continues(tail)) ++tail;
  return name.substr(0, head) + "\u2026" + name.substr(tail);
}

// Adds the heading of a panel and the lines below it. Returns where the panel itself may start.
double AddHead(Svg* svg, double y, const std::string& head, const std::vector<std::string>& notes) {
  svg->Text({20, y}, head, "head");
  for (const std::string& note : notes) svg->Text({20, y += 16}, note, "note");
  return y + 20;
}

// --- Bytes by step

// Draws the marks of one of the two lines. They are joined, and each is drawn while there are few.
struct Series {
  std::vector<Point> points;
  std::string name;
};

void AddSeries(Svg* svg, const Series& series, double label_y) {
  svg->Polyline(series.points, series.name);
  if (series.points.size() <= kMaxMarks) {
    for (const Point& point : series.points) svg->Circle(point, 3.5, series.name + "-mark");
  }
  svg->Text({series.points.back().x + 12, label_y}, series.name, "label");
}

// The labels stand beside the last marks, but never on top of each other.
void AddTwoSeries(Svg* svg, const Series& logical, const Series& stored) {
  double logical_y = logical.points.back().y + 4;
  double stored_y = stored.points.back().y + 4;
  if (const double overlap = 14 - std::abs(logical_y - stored_y); overlap > 0) {
    (logical_y <= stored_y ? logical_y : stored_y) -= overlap / 2;
    (logical_y <= stored_y ? stored_y : logical_y) += overlap / 2;
  }
  AddSeries(svg, logical, logical_y);
  AddSeries(svg, stored, stored_y);
}

LogAxis MakeAxis(const std::vector<PlotBin>& bins, double zero_y, double top_y) {
  double smallest = INFINITY;
  double largest = 0;
  for (const PlotBin& bin : bins) {
    for (const double bytes : {bin.logical_bytes, bin.stored_bytes}) {
      if (bytes > 0) smallest = std::min(smallest, bytes);
      largest = std::max(largest, bytes);
    }
  }
  return {std::min(smallest, largest), largest, zero_y, top_y};
}

void AddByteTicks(Svg* svg, const LogAxis& axis) {
  svg->Text({kLeft - 8, axis.Place(0) + 4}, "0", "tick", Anchor::kEnd);
  for (const double bytes : axis.Ticks()) {
    const double y = axis.Place(bytes);
    svg->Line({kLeft, y}, {kRight, y}, "grid");
    svg->Text({kLeft - 8, y + 4}, TickLabel(bytes), "tick", Anchor::kEnd);
  }
}

double StepX(size_t i, size_t count) {
  const double share = count == 1 ? 0.5 : static_cast<double>(i) / static_cast<double>(count - 1);
  return kLeft + 12 + share * (kRight - kLeft - 24);
}

void AddStepTicks(Svg* svg, const std::vector<PlotBin>& bins, double y) {
  const size_t every = (bins.size() + 7) / 8;
  for (size_t i = 0; i < bins.size(); i += every) {
    const double x = StepX(i, bins.size());
    svg->Line({x, y}, {x, y + 4}, "axis");
    svg->Text({x, y + 18}, Shortened(bins[i].first), "tick", Anchor::kMiddle);
  }
}

double AddSteps(Svg* svg, double y, const std::vector<CheckpointInfo>& checkpoints) {
  size_t per_bin = 1;
  const std::vector<PlotBin> bins = BinCheckpoints(checkpoints, &per_bin);
  std::vector<std::string> notes = {
      "logical: the bytes of a checkpoint as the trainer sees them. stored: what its save added, "
      "encoded. The scale is logarithmic."};
  if (per_bin > 1) {
    notes.push_back("Each point is the mean of " + std::to_string(per_bin) +
                    " checkpoints that follow each other.");
  }
  y = AddHead(svg, y, "Bytes by step", notes);
  if (bins.empty()) return svg->Text({kLeft, y}, "no checkpoints", "label"), y + 40;
  const double zero_y = y + kChartHeight;
  const LogAxis axis = MakeAxis(bins, zero_y, y);
  AddByteTicks(svg, axis);
  svg->Line({kLeft, y - 6}, {kLeft, zero_y}, "axis");
  svg->Line({kLeft, zero_y}, {kRight, zero_y}, "axis");
  AddStepTicks(svg, bins, zero_y);
  Series logical{{}, "logical"};
  Series stored{{}, "stored"};
  for (size_t i = 0; i < bins.size(); ++i) {
    logical.points.push_back({StepX(i, bins.size()), axis.Place(bins[i].logical_bytes)});
    stored.points.push_back({StepX(i, bins.size()), axis.Place(bins[i].stored_bytes)});
  }
  AddTwoSeries(svg, logical, stored);
  svg->Text({20, y - 2}, "bytes a step", "note");
  svg->Text({(kLeft + kRight) / 2, zero_y + 36}, "step, in the order in which they were saved",
            "note", Anchor::kMiddle);
  return zero_y + 72;
}

// --- Panels of bars

struct Bar {
  std::string name;
  double hollow = 0;  // bytes, drawn first
  double full = 0;    // bytes, drawn over it
  std::string label;
};

double LargestOf(const std::vector<Bar>& bars) {
  double largest = 1;
  for (const Bar& bar : bars) largest = std::max({largest, bar.hollow, bar.full});
  return largest;
}

// Returns the largest power of two that gives at least three ticks below `largest`.
double TickStep(double largest) {
  return std::max(1.0, std::exp2(std::floor(std::log2(largest)) - 1));
}

void AddBar(Svg* svg, const Bar& bar, double y, double pixels_per_byte) {
  // A value above zero is always visible.
  const auto width = [&](double bytes) {
    return bytes > 0 ? std::max(1.0, bytes * pixels_per_byte) : 0;
  };
  svg->Text({kLeft - 8, y + 11}, Shortened(bar.name), "tick", Anchor::kEnd);
  if (bar.hollow > 0) svg->Rectangle({kLeft, y}, width(bar.hollow), kBarHeight, "hollow");
  if (bar.full > 0) svg->Rectangle({kLeft, y}, width(bar.full), kBarHeight, "full");
  svg->Text({kLeft + width(std::max(bar.hollow, bar.full)) + 8, y + 11}, bar.label, "label");
}

void AddKey(Svg* svg, double y, const std::string& hollow, const std::string& full) {
  svg->Rectangle({kLeft, y}, 20, kBarHeight, "full");
  svg->Text({kLeft + 28, y + 11}, full, "label");
  svg->Rectangle({kLeft + 280, y}, 20, kBarHeight, "hollow");
  svg->Text({kLeft + 308, y + 11}, hollow, "label");
}

double AddBars(Svg* svg, double y, const std::vector<Bar>& bars, const std::string& unit) {
  constexpr double kBarSpace = 460;  // leaves room for the label of the longest
  const double largest = LargestOf(bars);
  const double pixels_per_byte = kBarSpace / largest;
  const double bottom = y + static_cast<double>(bars.size()) * kRowHeight;
  const double step = TickStep(largest);
  for (double bytes = 0; bytes <= largest; bytes += step) {
    const double x = kLeft + bytes * pixels_per_byte;
    svg->Line({x, y - 6}, {x, bottom}, "grid");
    svg->Text({x, bottom + 16}, TickLabel(bytes), "tick", Anchor::kMiddle);
  }
  svg->Line({kLeft, y - 6}, {kLeft, bottom}, "axis");
  for (size_t i = 0; i < bars.size(); ++i) {
    AddBar(svg, bars[i], y + static_cast<double>(i) * kRowHeight, pixels_per_byte);
  }
  svg->Text({kLeft + kBarSpace / 2, bottom + 34}, unit, "note", Anchor::kMiddle);
  return bottom + 70;
}

double AddSharing(Svg* svg, double y, const Sharing& sharing) {
  std::vector<Bar> bars;
  for (const GroupSharing& group : sharing.groups) {
    std::string label = HumanBytes(group.bytes);
    if (group.bytes > 0) label += ", " + HumanShare(group.new_bytes, group.bytes) + " new";
    bars.push_back({group.name, static_cast<double>(group.bytes),
                    static_cast<double>(group.new_bytes), std::move(label)});
  }
  y = AddHead(svg, y, "Sharing by tensor group",
              {"Tensors are grouped by the first parts of their names. Mean of " +
                   Count(sharing.num_checkpoints, "checkpoint") +
                   ", spread evenly, each compared with the step before it in its run, if any.",
               "New are the raw bytes of chunks that differ from the chunk at the same place one "
               "step before. Equal bytes elsewhere (tied tensors) are not counted as shared."});
  if (bars.empty()) return svg->Text({kLeft, y}, "no tensors", "label"), y + 40;
  AddKey(svg, y, "shared with the step before", "new");
  return AddBars(svg, y + 36, bars, "bytes of one checkpoint");
}

Bar StoredBar(const std::string& name, uint64_t raw_bytes, uint64_t stored_bytes) {
  return {name, static_cast<double>(raw_bytes), static_cast<double>(stored_bytes),
          HumanBytes(stored_bytes) + " of " + HumanBytes(raw_bytes) + " (" +
              HumanShare(stored_bytes, raw_bytes) + ")"};
}

double AddStored(Svg* svg, double y, const std::string& head, const std::string& note,
                 const std::vector<Bar>& bars) {
  y = AddHead(svg, y, head, {note});
  if (bars.empty()) return svg->Text({kLeft, y}, "no chunks", "label"), y + 40;
  AddKey(svg, y, "raw", "stored");
  return AddBars(svg, y + 36, bars, "bytes of all chunks");
}

double AddCodecs(Svg* svg, double y, const StoreStats& stats) {
  std::vector<Bar> codecs;
  for (const CodecUse& use : stats.by_codec) {
    codecs.push_back(StoredBar(use.codec, use.raw_bytes, use.stored_bytes));
  }
  std::vector<Bar> coders;
  for (const CoderUse& use : stats.by_coder) {
    coders.push_back(StoredBar(use.coder, use.raw_bytes, use.stored_bytes));
  }
  y = AddStored(svg, y, "Codecs",
                "All distinct chunks that some step needs, by the codec of their frames.", codecs);
  return AddStored(svg, y, "Coders",
                   "The same bytes by the coder of each plane of these frames. The header is the "
                   "rest of a frame.",
                   coders);
}

std::string Summary(const StoreStats& stats) {
  return Count(stats.num_steps, "step") + " in " + Count(stats.num_runs, "run") + ": " +
         HumanBytes(stats.logical_bytes) + " logical, " + HumanBytes(stats.unique_bytes) +
         " unique, " + HumanBytes(stats.stored_bytes) + " stored, " + HumanBytes(stats.disk_bytes) +
         " on disk";
}

}  // namespace

std::vector<PlotBin> BinCheckpoints(const std::vector<CheckpointInfo>& checkpoints,
                                    size_t* per_bin) {
  *per_bin = std::max<size_t>(1, (checkpoints.size() + kMaxPlotBins - 1) / kMaxPlotBins);
  std::vector<PlotBin> bins;
  for (size_t begin = 0; begin < checkpoints.size(); begin += *per_bin) {
    const size_t end = std::min(begin + *per_bin, checkpoints.size());
    PlotBin& bin = bins.emplace_back();
    bin.first = HumanId(checkpoints[begin].id);
    bin.last = HumanId(checkpoints[end - 1].id);
    for (size_t i = begin; i < end; ++i) {
      bin.logical_bytes += static_cast<double>(checkpoints[i].logical_bytes);
      bin.new_bytes += static_cast<double>(checkpoints[i].new_bytes);
      bin.stored_bytes += static_cast<double>(checkpoints[i].stored_bytes);
    }
    bin.logical_bytes /= static_cast<double>(end - begin);
    bin.new_bytes /= static_cast<double>(end - begin);
    bin.stored_bytes /= static_cast<double>(end - begin);
  }
  return bins;
}

LogAxis::LogAxis(double smallest, double largest, double zero_y, double top_y)
    : zero_y_(zero_y), bottom_y_(zero_y - kZeroGap), top_y_(top_y) {
  low_ = static_cast<int>(std::floor(std::log2(std::max(smallest, 1.0))));
  high_ = static_cast<int>(std::ceil(std::log2(std::max(largest, 1.0))));
  high_ = std::max(high_, low_ + 1);
  step_ = 1 + (high_ - low_ - 1) / 7;
}

double LogAxis::Place(double bytes) const {
  if (bytes <= 0) return zero_y_;
  const double share = (std::log2(std::max(bytes, 1.0)) - low_) / (high_ - low_);
  return bottom_y_ + share * (top_y_ - bottom_y_);
}

std::vector<double> LogAxis::Ticks() const {
  std::vector<double> ticks;
  for (int power = low_; power <= high_; power += step_) ticks.push_back(std::exp2(power));
  return ticks;
}

std::string PlotSvg(const PlotData& data) {
  Svg svg(kStyle, kHatch);
  svg.Text({20, 32}, data.title, "title");
  svg.Text({20, 52}, Summary(data.stats), "note");
  double y = AddSteps(&svg, 92, data.checkpoints);
  y = AddSharing(&svg, y, data.sharing);
  y = AddCodecs(&svg, y, data.stats);
  return svg.ToString(kWidth, y, data.title);
}

std::string PlotHtml(const PlotData& data) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"/><title>" +
         XmlText(data.title) + "</title></head>\n<body>\n" + PlotSvg(data) + "</body>\n</html>\n";
}

}  // namespace varve::internal::cli
