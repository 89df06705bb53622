// SPDX-License-Identifier: Apache-2.0
//
// A tiny writer of SVG. Shapes are placed in pixels from the top left corner. One style sheet has
// class names for their looks.
//
//   Svg svg(".axis { stroke: #000 }");
//   svg.Line({0, 10}, {100, 10}, "axis");
//   std::string file = svg.ToString(/*width=*/120, /*height=*/40, "What it shows");
//
// Thread rule: one thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace varve::internal::cli {

struct Point {
  double x = 0;
  double y = 0;
};

class Svg {
 public:
  enum class Anchor { kStart, kMiddle, kEnd };

  // `style` is CSS. `definitions` are SVG elements such as patterns.
  explicit Svg(std::string style, std::string definitions = "")
      : style_(std::move(style)), definitions_(std::move(definitions)) {}

  void Line(Point from, Point to, std::string_view look);
  void Polyline(std::span<const Point> points, std::string_view look);
  void Rectangle(Point corner, double width, double height, std::string_view look);
  void Circle(Point center, double radius, std::string_view look);
  // The text may be anything. Characters that XML does not allow are replaced.
  void Text(Point at, std::string_view text, std::string_view look, Anchor anchor = Anchor::kStart);

  // Returns the whole file, on a white ground.
  std::string ToString(double width, double height, std::string_view title) const;

 private:
  std::string style_;
  std::string definitions_;
  std::string shapes_;
};

// Returns the text as it may stand between XML tags and in attributes. Markup is escaped. Control
// characters, which a hostile name may hold, become escapes such as \x1b.
std::string XmlText(std::string_view text);

}  // namespace varve::internal::cli
