// SPDX-License-Identifier: Apache-2.0
#include "cli/svg.h"

#include <cstdio>

#include "cli/print.h"

namespace varve::internal::cli {
namespace {

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

std::string Attribute(std::string_view name, const std::string& value) {
  return " " + std::string(name) + "=\"" + value + "\"";
}

std::string Look(std::string_view look) { return Attribute("class", std::string(look)); }

std::string AnchorName(Svg::Anchor anchor) {
  switch (anchor) {
    case Svg::Anchor::kStart:
      return "start";
    case Svg::Anchor::kMiddle:
      return "middle";
    case Svg::Anchor::kEnd:
      break;
  }
  return "end";
}

}  // namespace

void Svg::Line(Point from, Point to, std::string_view look) {
  shapes_ += "<line" + Look(look) + Attribute("x1", Number(from.x)) +
             Attribute("y1", Number(from.y)) + Attribute("x2", Number(to.x)) +
             Attribute("y2", Number(to.y)) + "/>\n";
}

void Svg::Polyline(std::span<const Point> points, std::string_view look) {
  std::string list;
  for (const Point& point : points) {
    list += (list.empty() ? "" : " ") + Number(point.x) + "," + Number(point.y);
  }
  shapes_ += "<polyline" + Look(look) + Attribute("points", list) + "/>\n";
}

void Svg::Rectangle(Point corner, double width, double height, std::string_view look) {
  shapes_ += "<rect" + Look(look) + Attribute("x", Number(corner.x)) +
             Attribute("y", Number(corner.y)) + Attribute("width", Number(width)) +
             Attribute("height", Number(height)) + "/>\n";
}

void Svg::Circle(Point center, double radius, std::string_view look) {
  shapes_ += "<circle" + Look(look) + Attribute("cx", Number(center.x)) +
             Attribute("cy", Number(center.y)) + Attribute("r", Number(radius)) + "/>\n";
}

void Svg::Text(Point at, std::string_view text, std::string_view look, Anchor anchor) {
  shapes_ += "<text" + Look(look) + Attribute("x", Number(at.x)) + Attribute("y", Number(at.y)) +
             Attribute("text-anchor", AnchorName(anchor)) + ">" + XmlText(text) + "</text>\n";
}

std::string Svg::ToString(double width, double height, std::string_view title) const {
  const std::string box = "0 0 " + Number(width) + " " + Number(height);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\"" +
         Attribute("width", Number(width)) + Attribute("height", Number(height)) +
         Attribute("viewBox", box) + ">\n<title>" + XmlText(title) + "</title>\n<style>" + style_ +
         "</style>\n<defs>" + definitions_ + "</defs>\n" +
         "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n" + shapes_ + "</svg>\n";
}

std::string XmlText(std::string_view text) {
  std::string escaped;
  const std::string printable = Printable(text);
  for (size_t i = 0; i < printable.size(); ++i) {
    const std::string_view rest = std::string_view(printable).substr(i);
    if (rest.front() == '&') {
      escaped += "&amp;";
    } else if (rest.front() == '<') {
      escaped += "&lt;";
    } else if (rest.front() == '>') {
      escaped += "&gt;";
    } else if (rest.front() == '"') {
      escaped += "&quot;";
    } else if (rest.starts_with("\xef\xbf\xbe") || rest.starts_with("\xef\xbf\xbf")) {
      escaped += "\xef\xbf\xbd";  // U+FFFE and U+FFFF are UTF-8, but not XML
      i += 2;
    } else {
      escaped += rest.front();
    }
  }
  return escaped;
}

}  // namespace varve::internal::cli
