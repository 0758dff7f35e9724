//! Curve of the rate of a run over time, in a bounded number of points for any length of the run.

use serde::Serialize;

/// The most points; when there are more, every other one goes and points come half as often.
const POINTS_MAX: usize = 240;

/// Seconds from one point to the next at first.
const STEP_S: f64 = 1.0;

/// Progress at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Seconds in calls of the engine until then.
    pub at_s: f64,
    /// Operations until then.
    pub ops: u64,
    /// Operations a second since the point before.
    pub ops_per_s: f64,
}

/// The points of a run.
#[derive(Debug)]
pub(super) struct Curve {
    step_s: f64,
    points: Vec<(f64, u64)>,
}

impl Curve {
    pub(super) fn new() -> Self {
        Self { step_s: STEP_S, points: Vec::new() }
    }

    /// Tells that `ops` were done within `at_s`, both counted from the beginning.
    pub(super) fn record(&mut self, at_s: f64, ops: u64) {
        let last_s = self.points.last().map_or(0.0, |(at_s, _)| *at_s);
        if at_s < last_s + self.step_s {
            return;
        }

        if self.points.len() == POINTS_MAX {
            self.step_s *= 2.0;
            let mut number = 0;
            self.points.retain(|_| {
                number += 1;
                number % 2 == 0
            });
        }

        self.points.push((at_s, ops));
    }

    /// All points, the last of them at the end of the run.
    pub(super) fn points(&self, at_s: f64, ops: u64) -> Vec<Point> {
        let mut before = (0.0, 0);
        let is_new = |(_, last): &(f64, u64)| *last < ops;
        let end = self.points.last().is_none_or(is_new).then_some((at_s, ops));
        let mut points = Vec::with_capacity(self.points.len() + 1);
        for &(at_s, ops) in self.points.iter().chain(&end) {
            let ops_per_s = (ops - before.1) as f64 / (at_s - before.0).max(f64::MIN_POSITIVE);
            points.push(Point { at_s, ops, ops_per_s });
            before = (at_s, ops);
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_stay_few_and_say_the_rate_between_them() {
        let mut curve = Curve::new();
        for tick in 1..=10_000_u64 {
            curve.record(tick as f64 / 4.0, tick * 10);
        }

        let points = curve.points(2_500.0, 100_000);
        assert!(
            points.len() > POINTS_MAX / 2 && points.len() <= POINTS_MAX + 1,
            "{}",
            points.len()
        );

        assert!(points.windows(2).all(|pair| pair[0].ops < pair[1].ops));
        assert!(points.iter().all(|point| (point.ops_per_s - 40.0).abs() < 1e-6), "{points:?}");
        assert_eq!(points.last().map(|point| point.ops), Some(100_000));
    }

    #[test]
    fn a_short_run_has_one_point() {
        let mut curve = Curve::new();
        curve.record(0.25, 10);
        assert_eq!(curve.points(0.5, 20), [Point { at_s: 0.5, ops: 20, ops_per_s: 40.0 }]);
    }
}
