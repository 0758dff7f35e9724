//! Windows of operations: when a cost is steady, and how sure its mean is.

/// Windows that a run is divided into at least, given enough operations; a figure is the
/// mean of at least this many batch means.
pub(super) const WINDOWS_MIN: u64 = 40;

/// Operations of a window at most: what is drawn and kept in memory ahead of them.
pub(super) const WINDOW_OPS_MAX: u64 = 16_384;

/// Batch means below which no interval is told.
const MEANS_MIN: usize = 20;

/// Windows that must agree for a cost to be steady, and how far they may differ: for each read, and
/// for each operation, of which there may be hardly any that reads.
const STEADY_WINDOWS: usize = 3;
const STEADY_RATIO: f64 = 0.005;
const STEADY_READS: f64 = 0.005;

/// Operations of each window of a run of `ops`.
pub(super) fn window_ops(ops: u64) -> u64 {
    ops.div_ceil(WINDOWS_MIN).clamp(1, WINDOW_OPS_MAX)
}

/// Whether the last windows cost the same.
pub(super) fn is_steady(costs: &[f64]) -> bool {
    let Some(last) = costs.last_chunk::<STEADY_WINDOWS>() else { return false };
    let least = last.iter().copied().fold(f64::MAX, f64::min);
    let most = last.iter().copied().fold(0.0, f64::max);
    most - least <= (most * STEADY_RATIO).max(STEADY_READS)
}

/// Half of the interval that has the mean with a probability of 95 %; `None` for too few means.
pub(super) fn confidence_95(means: &[f64]) -> Option<f64> {
    if means.len() < MEANS_MIN {
        return None;
    }
    let count = means.len() as f64;
    let mean = means.iter().sum::<f64>() / count;
    let squares = means.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    let free = count - 1.0;
    // Student's t at 0.975, to 0.0005 for 19 degrees of freedom and more.
    let t = 1.96 + 2.37 / free + 2.8 / (free * free);
    Some(t * (squares / free / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_many_and_small() {
        assert_eq!([1, 39, 40, 41, 500_000].map(window_ops), [1, 1, 1, 2, 12_500]);
        assert_eq!(window_ops(10_000_000), WINDOW_OPS_MAX);
    }

    #[test]
    fn three_windows_that_agree_are_steady() {
        assert!(!is_steady(&[1.0, 1.0]));
        assert!(is_steady(&[5.0, 2.0, 2.009, 2.001]));
        assert!(!is_steady(&[2.0, 2.02, 2.0]));
        assert!(!is_steady(&[1.0, 1.0, 1.0, 1.1]));
        assert!(is_steady(&[0.001, 0.0, 0.004]));
        assert!(!is_steady(&[0.1, 0.12, 0.1]));
    }

    #[test]
    fn the_interval_is_that_of_students_distribution() {
        assert_eq!(confidence_95(&[1.0; 19]), None);
        assert_eq!(confidence_95(&[1.0; 20]), Some(0.0));
        // 20 means, half 0 and half 2: deviation √(20/19); t = 2.0930.
        let means: Vec<f64> = (0..20).map(|at| f64::from(at % 2) * 2.0).collect();
        let expected = 2.0930 * (1.0_f64 / 19.0).sqrt();
        assert!((confidence_95(&means).unwrap() - expected).abs() < 2e-4);
    }
}
