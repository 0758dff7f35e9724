//! Comparison of two results, each of one run or of several runs of the same work.
//!
//! * A metric is a number anywhere in the object of a report, by its path: `speed.eta`. The last
//!   parts of a path are enough where they are unambiguous: `get.p99`.
//! * The value of a side is the mean of its runs. Its interval has the mean with a probability of
//!   95 %: by Student's distribution over the runs of the side, or, of a single run, from the field
//!   `<metric>_ci95` beside the metric. Without either there is no interval.
//! * Invariant: a rule fails only if its threshold is crossed *and* the intervals of both sides do
//!   not overlap. Sides without an interval are taken as exact.
//! * Results of unlike work are refused: every field of `IDENTITY` that either side has must be
//!   equal.

use serde::Serialize;
use serde_json::Value;

/// Fields that say what was done and under which terms.
const IDENTITY: &[&[&str]] = &[
    &["command"],
    &["status"],
    &["source"],
    &["schema_version"],
    &["mode"],
    &["entries"],
    &["keys"],
    &["batches"],
    &["batch_size"],
    &["batches_in_flight"],
    &["blocks"],
    &["profile"],
    &["threads"],
    &["durability"],
    &["file_bytes"],
    &["depth"],
    &["reads"],
    &["queue"],
    &["seconds_per_point"],
    &["workload"],
    &["engine", "engine"],
    &["engine", "durability"],
    &["engine", "io_mode"],
    &["engine", "options"],
    &["memory", "budget_bytes"],
    &["memory", "memory_enforced"],
    &["memory_budget_bytes"],
    &["budget_bytes"],
    &["convergence", "converged"],
];

/// Fields of a workload that are results of the run and not terms of it.
const WORKLOAD_RESULTS: [&str; 4] = ["found", "absent", "missing", "batches"];

/// Metrics that are shown without being asked for, where both sides have them.
const SHOWN: &[&str] = &[
    "io_per_get",
    "ops_per_s",
    "lookups_per_s",
    "updates_per_s",
    "cpu_us_per_op",
    "eta",
    "eta_utxo",
    "latency_us.get.p50",
    "latency_us.get.p99",
    "latency_us.get.p9999",
    "latency_us.write.p99",
    "lookup_latency_us.p99",
    "update_latency_us.p99",
    "update_latency_us.max",
    "write_amplification",
    "space_amplification",
    "rss_peak_bytes",
    "fio_read_iops",
];

/// Student's t at 0.975 for 1 to 19 degrees of freedom.
const STUDENT_T: [f64; 19] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
];

/// Reason why two results are not compared.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// Results are of unlike work.
    #[error("the results are of unlike work: {0}; next: --force compares them all the same")]
    Unlike(String),
    /// A rule has another form.
    #[error("`{0}` is not a rule; write 'io_per_get>+3%' (worse if it grows) or 'ops_per_s<-5%'")]
    Rule(String),
    /// A metric is not in every result.
    #[error("no number `{0}` in every result")]
    Metric(String),
    /// Several numbers have a name.
    #[error("`{name}` may be {first} or {second}; write more of the path")]
    Ambiguous {
        /// The name.
        name: String,
        /// One path.
        first: String,
        /// Another path.
        second: String,
    },
    /// A side has no result.
    #[error("a side has no result")]
    Empty,
}

/// Rule that a metric must keep.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    text: String,
    metric: String,
    /// Whether larger is worse.
    grows: bool,
    bound: f64,
    /// Whether the bound is a share of the old value.
    is_relative: bool,
}

impl Rule {
    /// Parses `METRIC>+N%`, `METRIC<-N%`, or the same without the sign of per cent for a difference
    /// in the unit of the metric.
    ///
    /// # Errors
    /// [`Error::Rule`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        let refuse = || Error::Rule(text.to_owned());
        let (metric, bound, grows) = match (text.split_once(">+"), text.split_once("<-")) {
            (Some((metric, bound)), None) => (metric, bound, true),
            (None, Some((metric, bound))) => (metric, bound, false),
            _ => return Err(refuse()),
        };
        let (digits, is_relative) = match bound.trim().strip_suffix('%') {
            Some(digits) => (digits, true),
            None => (bound.trim(), false),
        };
        let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let number: Option<f64> = digits.parse().ok().filter(|_| is_plain);
        let number = number.ok_or_else(refuse)?;
        let metric = metric.trim();
        if metric.is_empty() {
            return Err(refuse());
        }

        let bound = if is_relative { number / 100.0 } else { number };
        Ok(Self { text: text.to_owned(), metric: metric.to_owned(), grows, bound, is_relative })
    }

    /// Whether the metric is worse: beyond the bound, and beyond both intervals.
    fn is_broken(&self, old: &Measured, new: &Measured) -> bool {
        let change = if self.grows { new.value - old.value } else { old.value - new.value };
        let bound = if self.is_relative { self.bound * old.value.abs() } else { self.bound };
        change > bound && change > old.ci95.unwrap_or(0.0) + new.ci95.unwrap_or(0.0)
    }
}

/// A metric of one side.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measured {
    /// Mean of the runs.
    pub value: f64,
    /// Half of the interval that has the mean with a probability of 95 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<f64>,
}

/// A metric of both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metric {
    /// Path in the report.
    pub metric: String,
    /// The metric of the first side.
    pub old: Measured,
    /// The metric of the second side.
    pub new: Measured,
    /// Change over the old value; absent if that is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change_ratio: Option<f64>,
    /// Rules that the metric breaks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub broken: Vec<String>,
}

/// Result of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Results of each side.
    pub runs: [u64; 2],
    /// The metrics: those with rules first.
    pub metrics: Vec<Metric>,
    /// Differences of the work, if the caller wanted the comparison all the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unlike: Vec<String>,
}

impl Comparison {
    /// Returns the rules that are broken, each with the values of both sides.
    #[must_use]
    pub fn regressions(&self) -> Vec<String> {
        let of = |metric: &Metric| {
            let (old, new) = (metric.old.value, metric.new.value);
            metric
                .broken
                .iter()
                .map(|rule| format!("{rule}: {old} became {new}"))
                .collect::<Vec<_>>()
        };
        self.metrics.iter().flat_map(of).collect()
    }
}

/// Compares the runs `old` with the runs `new` by `rules`. Results of unlike work are compared only
/// with `force`.
///
/// # Errors
/// [`Error`].
pub fn compare(
    (old, new): (&[Value], &[Value]),
    rules: &[Rule],
    force: bool,
) -> Result<Comparison, Error> {
    let first = old.first().ok_or(Error::Empty)?;
    new.first().ok_or(Error::Empty)?;

    let mut unlike = Vec::new();
    for other in old.iter().chain(new).skip(1) {
        for difference in differences(first, other) {
            if !unlike.contains(&difference) {
                unlike.push(difference);
            }
        }
    }
    if !unlike.is_empty() && !force {
        return Err(Error::Unlike(unlike.join("; ")));
    }

    let mut metrics: Vec<Metric> = Vec::new();
    for rule in rules {
        let path = resolve(first, &rule.metric)?;
        let mut metric = metric((old, new), &path).ok_or_else(|| Error::Metric(path.join(".")))?;
        if rule.is_broken(&metric.old, &metric.new) {
            metric.broken.push(rule.text.clone());
        }
        match metrics.iter_mut().find(|known| known.metric == metric.metric) {
            Some(known) => known.broken.append(&mut metric.broken),
            None => metrics.push(metric),
        }
    }

    for name in SHOWN {
        let Ok(path) = resolve(first, name) else { continue };
        let is_known = metrics.iter().any(|known| known.metric == path.join("."));
        if !is_known {
            metrics.extend(metric((old, new), &path));
        }
    }

    Ok(Comparison { runs: [old.len() as u64, new.len() as u64], metrics, unlike })
}

/// Returns the differences of the work of two results, as text.
fn differences(one: &Value, other: &Value) -> Vec<String> {
    let at = |value: &Value, path: &[&str]| {
        let mut found = path.iter().try_fold(value, |value, name| value.get(name))?.clone();
        if let (["workload"], Some(fields)) = (path, found.as_object_mut()) {
            for name in WORKLOAD_RESULTS {
                fields.remove(name);
            }
        }
        Some(found)
    };

    let mut differences = Vec::new();
    for path in IDENTITY {
        match (at(one, path), at(other, path)) {
            (Some(Value::Object(one)), Some(Value::Object(other))) => {
                let names = one.keys().chain(other.keys().filter(|name| !one.contains_key(*name)));
                differences.extend(names.filter(|name| one.get(*name) != other.get(*name)).map(
                    |name| {
                        difference(
                            &[*path, &[name.as_str()][..]].concat(),
                            one.get(name),
                            other.get(name),
                        )
                    },
                ));
            }
            (one, other) if one != other => {
                differences.push(difference(path, one.as_ref(), other.as_ref()));
            }
            _ => {}
        }
    }
    differences
}

fn difference(path: &[&str], one: Option<&Value>, other: Option<&Value>) -> String {
    let shown = |value: Option<&Value>| value.map_or("absent".to_owned(), ToString::to_string);
    format!("{} is {} and {}", path.join("."), shown(one), shown(other))
}

/// Returns the path of the number that a name stands for: the name itself, or the only path that
/// ends with it. Of a field that stands flat as well, the flat one.
fn resolve(report: &Value, name: &str) -> Result<Vec<String>, Error> {
    let parts: Vec<&str> = name.split('.').collect();
    let mut paths = Vec::new();
    numbers(report, &mut Vec::new(), &mut paths);
    paths.retain(|path| {
        let from = path.len().checked_sub(parts.len());
        from.is_some_and(|from| path[from..].iter().eq(&parts))
    });
    paths.sort_by_key(Vec::len);
    match &paths[..] {
        [] => Err(Error::Metric(name.to_owned())),
        [first, second, ..] if first.len() == second.len() && first.len() > parts.len() => {
            let (first, second) = (first.join("."), second.join("."));
            Err(Error::Ambiguous { name: name.to_owned(), first, second })
        }
        [first, ..] => Ok(first.clone()),
    }
}

/// Collects the paths of all numbers. Lists are passed over: their places are no names.
fn numbers(value: &Value, path: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    match value {
        Value::Number(_) => paths.push(path.clone()),
        Value::Object(fields) => {
            for (name, value) in fields {
                path.push(name.clone());
                numbers(value, path, paths);
                path.pop();
            }
        }
        _ => {}
    }
}

/// Returns a metric of both sides; `None` unless every result has it.
fn metric((old, new): (&[Value], &[Value]), path: &[String]) -> Option<Metric> {
    let (old, new) = (side(old, path)?, side(new, path)?);
    let change_ratio = (old.value != 0.0).then(|| (new.value - old.value) / old.value.abs());
    Some(Metric { metric: path.join("."), old, new, change_ratio, broken: Vec::new() })
}

fn side(runs: &[Value], path: &[String]) -> Option<Measured> {
    let number = |run: &Value| path.iter().try_fold(run, |value, name| value.get(name))?.as_f64();
    let values: Option<Vec<f64>> = runs.iter().map(number).collect();
    let values = values?;
    let count = values.len() as f64;
    let value = values.iter().sum::<f64>() / count;

    if let [run] = runs {
        return Some(Measured { value, ci95: interval_beside(run, path) });
    }
    let free = values.len() - 1;
    let squares: f64 = values.iter().map(|run| (run - value).powi(2)).sum();
    // Beyond the table the value of 19 is a little too large, so the interval is.
    let t = STUDENT_T[free.min(STUDENT_T.len()) - 1];
    Some(Measured { value, ci95: Some(t * (squares / free as f64 / count).sqrt()) })
}

/// Returns the interval that a report states of a metric, beside it or, of a flat field, in the
/// only group that has it.
fn interval_beside(run: &Value, path: &[String]) -> Option<f64> {
    let (last, group) = path.split_last()?;
    let name = format!("{last}_ci95");
    let beside = group.iter().try_fold(run, |value, name| value.get(name))?.get(&name);
    match beside {
        Some(found) => found.as_f64(),
        None => {
            let path = resolve(run, &name).ok()?;
            path.iter().try_fold(run, |value, name| value.get(name))?.as_f64()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(io_per_get: f64, ci95: f64, rate: f64) -> Value {
        json!({
            "command": "bench kvget run", "io_per_get": io_per_get, "lookups_per_s": rate,
            "workload": {"name": "kvget", "entries": 10, "found": 5},
            "io": {"io_per_get": io_per_get, "io_per_get_ci95": ci95},
            "speed": {"lookups_per_s": rate, "latency_us": {"get": {"p99": 7.0}, "put": {"p99": 9.0}}},
        })
    }

    fn broken(old: &[Value], new: &[Value], rule: &str) -> bool {
        let rules = [Rule::parse(rule).unwrap()];
        !compare((old, new), &rules, false).unwrap().regressions().is_empty()
    }

    #[test]
    fn a_rule_breaks_only_beyond_its_bound_and_beyond_the_intervals() {
        let old = [run(1.0, 0.01, 100.0)];
        assert!(broken(&old, &[run(1.05, 0.01, 100.0)], "io_per_get>+3%"));
        assert!(!broken(&old, &[run(1.02, 0.001, 100.0)], "io_per_get>+3%"), "within the bound");
        assert!(!broken(&old, &[run(1.05, 0.05, 100.0)], "io_per_get>+3%"), "intervals overlap");
        assert!(!broken(&old, &[run(0.5, 0.0, 100.0)], "io_per_get>+3%"), "better");
        assert!(broken(&old, &[run(1.05, 0.01, 100.0)], "io_per_get>+0.04"));
        assert!(!broken(&old, &[run(1.05, 0.01, 100.0)], "io_per_get>+0.06"));

        // No interval: the bound alone.
        assert!(broken(&old, &[run(1.0, 0.01, 94.0)], "lookups_per_s<-5%"));
        assert!(!broken(&old, &[run(1.0, 0.01, 96.0)], "lookups_per_s<-5%"));
    }

    #[test]
    fn several_runs_of_a_side_have_an_interval_by_student() {
        let rates = |rates: [f64; 3]| rates.map(|rate| run(1.0, 0.0, rate));
        let old = rates([90.0, 100.0, 110.0]);
        let found = compare((&old, &rates([80.0, 90.0, 100.0])), &[], false).unwrap();
        let metric = found.metrics.iter().find(|metric| metric.metric == "lookups_per_s").unwrap();
        // The deviation is 10, and t with two degrees of freedom 4.303.
        assert!((metric.old.ci95.unwrap() - 4.303 * 10.0 / 3.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(metric.change_ratio, Some(-0.1));
        assert!(!broken(&old, &rates([80.0, 90.0, 100.0]), "lookups_per_s<-5%"));
        assert!(broken(&old, &rates([19.0, 20.0, 21.0]), "lookups_per_s<-5%"));
    }

    #[test]
    fn unlike_work_is_refused_unless_it_is_forced() {
        let old = run(1.0, 0.0, 1.0);
        let mut new = old.clone();
        new["workload"]["entries"] = json!(11);
        new["memory"] = json!({"budget_bytes": 5});
        let (old, new) = ([old], [new]);
        let Err(Error::Unlike(text)) = compare((&old, &new), &[], false) else { panic!() };
        assert_eq!(text, "workload.entries is 10 and 11; memory.budget_bytes is absent and 5");
        assert_eq!(compare((&old, &new), &[], true).unwrap().unlike.len(), 2);

        // Results of the operations are no terms of them.
        let mut other = old[0].clone();
        other["workload"]["found"] = json!(6);
        assert!(compare((&old, &[other]), &[], false).is_ok());
        assert_eq!(compare((&old, &[]), &[], true), Err(Error::Empty));
    }

    #[test]
    fn metrics_are_found_by_the_end_of_their_paths() {
        let report = run(1.0, 0.0, 1.0);
        let found = |name| resolve(&report, name).map(|path| path.join("."));
        assert_eq!(found("io_per_get").unwrap(), "io_per_get");
        assert_eq!(found("get.p99").unwrap(), "speed.latency_us.get.p99");
        assert!(matches!(found("p99"), Err(Error::Ambiguous { .. })));
        assert!(matches!(found("p98"), Err(Error::Metric(_))));
        assert!(matches!(found("name"), Err(Error::Metric(_))), "text is no metric");
    }

    #[test]
    fn rules_have_one_form() {
        for text in ["a>+3%", "a.b<-0.5%", "a >+ 3", "a>+0"] {
            assert!(Rule::parse(text).is_ok(), "{text}");
        }
        for text in ["a", "a>3%", "a<+3%", ">+3%", "a>+", "a>+-3%", "a>+3%<-2%", "a>+1e3", "a>+nan"]
        {
            assert!(Rule::parse(text).is_err(), "{text}");
        }
    }
}
