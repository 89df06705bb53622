// SPDX-License-Identifier: Apache-2.0
#include "cli/print.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>

namespace varve::internal::cli {
namespace {

template <typename... Args>
std::string Format(const char* format, Args... args) {
  char text[128];
  std::snprintf(text, sizeof(text), format, args...);
  return text;
}

// Returns the code point of a character of two bytes or more.
char32_t CodePoint(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  char32_t code = first & (0x7fu >> character.size());
  for (const char c : character.substr(1))
    code = code << 6 | (static_cast<unsigned char>(c) & 0x3f);
  return code;
}

// Returns the bytes of the first character of `text`, or 0 when they are not UTF-8.
size_t CharacterSize(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  if (byte < 0x80) return 1;
  const size_t size = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
  if (byte < 0xc2 || byte > 0xf4 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((static_cast<unsigned char>(text[i]) >> 6) != 2) return 0;
  }
  const char32_t code = CodePoint(text.substr(0, size));
  const bool is_shortest = code >= (size == 4 ? 0x10000u : size == 3 ? 0x800u : 0x80u);
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  return is_shortest && !is_surrogate && code < 0x110000 ? size : 0;
}

// Characters that show nothing, but end a line, turn the text around, or tell the terminal how to
// show what follows.
bool IsControl(char32_t code) {
  struct Range {
    char32_t first, last;
  };
  static constexpr Range kControls[] = {{0x61c, 0x61c},   {0x180e, 0x180e},   {0x200e, 0x200f},
                                        {0x2028, 0x202e}, {0x2060, 0x206f},   {0xfeff, 0xfeff},
                                        {0xfff9, 0xfffb}, {0x1d173, 0x1d17a}, {0xe0000, 0xe007f}};
  return std::any_of(std::begin(kControls), std::end(kControls), [code](const Range& range) {
    return range.first <= code && code <= range.last;
  });
}

// Counts characters instead of bytes, as a terminal shows most names.
size_t DisplayWidth(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) >> 6) != 2; }));
}

std::string Padded(const std::string& text, size_t width, Table::Align align) {
  const std::string space(width - std::min(width, DisplayWidth(text)), ' ');
  return align == Table::Align::kLeft ? text + space : space + text;
}

std::string Line(const std::vector<std::string>& cells, const std::vector<size_t>& widths,
                 const std::vector<Table::Column>& columns) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += "  ";
    line += Padded(cells[i], widths[i], columns[i].align);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace

std::string HumanBytes(uint64_t bytes) {
  static constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return Format("%d B", static_cast<int>(bytes));
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // Otherwise 1023.95 would be printed as "1024.0".
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return Format(value < 99.95 ? "%.1f %s" : "%.0f %s", value, kUnits[unit]);
}

std::string HumanDuration(std::chrono::duration<double> duration) {
  const double seconds = duration.count();
  if (seconds < 0.9995e-3) return Format("%.0f us", seconds * 1e6);
  if (seconds < 0.9995) return Format("%.0f ms", seconds * 1e3);
  if (seconds < 59.95) return Format("%.1f s", seconds);
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (whole < 3600) return Format("%lld min %lld s", whole / 60, whole % 60);
  return Format("%lld h %lld min", whole / 3600, whole % 3600 / 60);
}

std::string HumanRate(uint64_t bytes, std::chrono::duration<double> duration) {
  if (duration.count() <= 0) return "-";
  const double rate = static_cast<double>(bytes) / duration.count();
  return HumanBytes(static_cast<uint64_t>(std::min(rate, 1e18))) + "/s";
}

std::string HumanTime(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char text[64];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S %z", &parts);
  return text;
}

std::string HumanShare(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return Format("%.1f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string HumanNumber(double value) {
  return std::isnan(value) ? "nan" : Format("%g", value);  // printf also shows the sign of a NaN
}

std::string HumanShape(std::span<const int64_t> shape) {
  std::string text = "[";
  for (const int64_t axis : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(axis);
  return text + "]";
}

std::string HumanMetrics(const std::map<std::string, double>& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    text += (text.empty() ? "" : " ") + name + "=" + HumanNumber(value);
  }
  return text;
}

std::string HumanId(const CheckpointId& id) {
  const std::string step = std::to_string(id.step);
  return id.run == "main" ? step : id.run + "@" + step;
}

std::string Count(uint64_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

std::string CountOf(uint64_t part, uint64_t whole) {
  return std::to_string(part) + " of " + std::to_string(whole);
}

std::string ReclaimText(const ReclaimReport& report) {
  return HumanBytes(report.freed_bytes) + " freed, " + HumanBytes(report.pending_bytes) +
         " pending, disk " + HumanBytes(report.disk_bytes_before) + " -> " +
         HumanBytes(report.disk_bytes_after);
}

std::string WarningsText(std::span<const std::string> warnings) {
  std::string text;
  for (const std::string& warning : warnings) text += "warning: " + Printable(warning) + "\n";
  return text;
}

std::string SaveText(const SaveReport& report) {
  return "step " + Printable(HumanId(report.id)) + ": " + Count(report.num_tensors, "tensor") +
         ", " + HumanBytes(report.logical_bytes) + ", of which " + HumanBytes(report.new_bytes) +
         " new, stored in " + HumanBytes(report.stored_bytes) + " (" +
         HumanDuration(report.elapsed) + ")";
}

std::string Join(std::span<const std::string> parts, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += separator;
    text += parts[i];
  }
  return text;
}

std::string Printable(std::string_view text) {
  std::string printable;
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text[0]);
    const size_t size = CharacterSize(text);
    const char32_t code = size > 1 ? CodePoint(text.substr(0, size)) : byte;
    if (byte == '\n') {
      printable += "\\n";
    } else if (byte == '\t') {
      printable += "\\t";
    } else if (size == 0 || byte < 0x20 || byte == 0x7f) {
      printable += Format("\\x%02x", byte);
    } else if (code >= 0x80 && code < 0xa0) {
      printable += Format("\\x%02x", static_cast<unsigned>(code));  // two bytes of UTF-8
    } else if (IsControl(code)) {
      printable += Format(code > 0xffff ? "\\U%08x" : "\\u%04x", static_cast<unsigned>(code));
    } else {
      printable += text.substr(0, size);
    }
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return printable;
}

std::string Message(std::string_view message) {
  const std::string text = Printable(message);
  constexpr size_t kMaxWord = 256;
  constexpr size_t kHead = 96;
  constexpr size_t kTail = 32;
  const auto is_inside = [&text](size_t at) {
    return (static_cast<unsigned char>(text[at]) >> 6) == 2;
  };
  std::string cut;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (end - begin <= kMaxWord) {
      cut += text.substr(begin, end - begin);
    } else {
      size_t head = begin + kHead;
      size_t tail = end - kTail;
      while (is_inside(head)) --head;
      while (is_inside(tail)) --tail;
      cut += text.substr(begin, head - begin) + "...(" + std::to_string(tail - head) +
             " bytes)..." + text.substr(tail, end - tail);
    }
    if (end < text.size()) cut += ' ';
    begin = end + 1;
  }
  return cut;
}

void Table::AddRow(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t width = DisplayWidth(titles[i]);
    for (const auto& row : rows_) width = std::max(width, DisplayWidth(row[i]));
    widths.push_back(width);
  }
  std::string text = Line(titles, widths, columns_);
  for (const auto& row : rows_) text += Line(row, widths, columns_);
  return text;
}

}  // namespace varve::internal::cli
