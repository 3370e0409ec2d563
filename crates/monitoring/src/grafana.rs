//! The dashboard as Grafana's classic JSON model, which its sidecar and its import take.
//!
//! No more than what Grafana's own published types know (grafana-foundation-sdk for 10.1,
//! Apache-2.0): read into those and written again, every field is still there.

use serde_json::{Value, json};

use crate::dashboard::{Bound, Dashboard, Kind, Panel, Row};

/// Columns of Grafana's grid.
const COLUMNS: u32 = 24;
/// Height of a stat, and of any other panel, in the grid's rows.
const STAT_HEIGHT: u32 = 4;
const PANEL_HEIGHT: u32 = 8;
/// Grafana 10's model; later ones migrate it.
const SCHEMA_VERSION: u32 = 39;

/// The dashboard's file.
#[must_use]
pub fn json(dashboard: &Dashboard) -> String {
    let mut text = format!("{:#}", model(dashboard));
    text.push('\n');
    text
}

/// The dashboard's model.
#[must_use]
pub fn model(dashboard: &Dashboard) -> Value {
    json!({
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["kubernetes", "swimlet"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [{
            "title": "Runbooks",
            "type": "link",
            "url": crate::alert::RUNBOOKS,
            "targetBlank": true,
            "icon": "doc",
        }],
        "templating": {"list": variables()},
        "panels": panels(dashboard.rows),
    })
}

fn variables() -> Value {
    json!([
        {
            "name": "datasource",
            "label": "Prometheus",
            "type": "datasource",
            "query": "prometheus",
            "refresh": 1,
            "hide": 0,
            "current": {},
        },
        {
            "name": "cluster",
            "label": "Cluster",
            "type": "query",
            "datasource": datasource(),
            "query": {"query": "label_values(swimlet_build_info, cluster)", "refId": "cluster"},
            "refresh": 2,
            "sort": 1,
            "multi": true,
            "includeAll": true,
            // Matches the absent label, too: with one cluster nothing need be set.
            "allValue": ".*",
            "current": {"selected": true, "text": ["All"], "value": ["$__all"]},
            "hide": 0,
        },
    ])
}

fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

/// Rows and panels, laid out from left to right and from top to bottom.
fn panels(rows: &[Row]) -> Value {
    let mut placed: Vec<Value> = Vec::new();
    let mut y = 0;
    for row in rows {
        let id = placed.len() + 1;
        placed.push(json!({
            "id": id,
            "type": "row",
            "title": row.title,
            "collapsed": false,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
        }));
        y += 1;
        let (mut x, mut tallest) = (0, 0);
        for panel in row.panels {
            let height = match panel.kind {
                Kind::Stat(_) => STAT_HEIGHT,
                _ => PANEL_HEIGHT,
            };
            if x + panel.width > COLUMNS {
                (x, y, tallest) = (0, y + tallest, 0);
            }
            let place = json!({"x": x, "y": y, "w": panel.width, "h": height});
            placed.push(shown(panel, placed.len() + 1, place));
            x += panel.width;
            tallest = tallest.max(height);
        }
        y += tallest;
    }
    Value::from(placed)
}

fn shown(panel: &Panel, id: usize, place: Value) -> Value {
    let (kind, options, custom) = drawn(panel.kind);
    let instant = matches!(panel.kind, Kind::Stat(_) | Kind::Ranked);
    let targets = panel.queries.iter().zip('A'..).map(|(query, letter)| {
        json!({
            "refId": letter.to_string(),
            "datasource": datasource(),
            "expr": query.expr,
            "legendFormat": query.legend,
            "instant": instant,
            "range": !instant,
        })
    });
    json!({
        "id": id,
        "type": kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": datasource(),
        "gridPos": place,
        "targets": targets.collect::<Vec<_>>(),
        "options": options,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit.as_str(),
                "noValue": panel.empty,
                "min": 0,
                "custom": custom,
                "color": {"mode": colour_mode(panel.kind)},
                "thresholds": {"mode": "absolute", "steps": steps(panel.kind)},
            },
            "overrides": [],
        },
    })
}

/// Grafana's type of panel, its options, and how fields are drawn in it.
fn drawn(kind: Kind) -> (&'static str, Value, Value) {
    let newest = json!({"calcs": ["lastNotNull"], "fields": "", "values": false});
    match kind {
        Kind::Stat(_) => (
            "stat",
            json!({
                "reduceOptions": newest,
                "colorMode": "background",
                "graphMode": "none",
                "justifyMode": "center",
                "orientation": "auto",
                "textMode": "auto",
            }),
            json!({}),
        ),
        // Its series are values with names, which a table would spread over columns.
        Kind::Ranked => (
            "bargauge",
            json!({
                "reduceOptions": newest,
                "displayMode": "basic",
                "orientation": "horizontal",
                "showUnfilled": true,
                "valueMode": "text",
            }),
            json!({}),
        ),
        Kind::Lines | Kind::Stacked => {
            let stacked = kind == Kind::Stacked;
            (
                "timeseries",
                json!({
                    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": true},
                    "tooltip": {"mode": "multi", "sort": "desc"},
                }),
                json!({
                    "drawStyle": "line",
                    "lineInterpolation": "stepAfter",
                    "fillOpacity": if stacked { 30 } else { 0 },
                    "showPoints": "never",
                    "spanNulls": false,
                    "stacking": {"mode": if stacked { "normal" } else { "none" }, "group": "A"},
                }),
            )
        }
    }
}

fn colour_mode(kind: Kind) -> &'static str {
    match kind {
        Kind::Stat(_) => "thresholds",
        _ => "palette-classic",
    }
}

fn steps(kind: Kind) -> Vec<Value> {
    let bounds = match kind {
        Kind::Stat(bounds) => bounds,
        _ => &[],
    };
    let step = |Bound(from, colour): &Bound| {
        // The first step has no bound: JSON has no infinity.
        let from = from.is_finite().then_some(*from);
        json!({"value": from, "color": colour.as_str()})
    };
    bounds.iter().map(step).collect()
}
