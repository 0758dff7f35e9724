//! Zipf-distributed ranks: rank `k` of `1..=count` has a weight of `1 / k^exponent`.
//!
//! Method: rejection-inversion sampling (W. Hörmann and G. Derflinger, "Rejection-inversion to
//! generate variates from monotone discrete distributions", ACM TOMACS 6(3), 1996). No table,
//! so a population of billions costs nothing; fewer than two draws per sample on average.
//!
//! The logarithm and exponential come from the platform, whose last bit may differ: a stream is
//! repeatable on one platform and must not enter a golden file.

use rand_chacha::rand_core::RngCore;

use crate::draw::Draw;

/// A Zipf distribution over `0..count`, number 0 being the most frequent.
#[derive(Debug, Clone, Copy)]
pub struct Zipf {
    count: f64,
    exponent: f64,
    /// Integral of the weight up to 1.5, less the weight of rank 1; the lower end of the draws.
    integral_first: f64,
    /// Integral of the weight up to `count + 0.5`; the upper end of the draws.
    integral_last: f64,
    /// Ranks whose draw lies this close above are accepted without computing their weight.
    shortcut: f64,
}

impl Zipf {
    /// A distribution over `count` numbers, uniform for an `exponent` of 0 and steeper with more.
    ///
    /// # Panics
    /// When `count` is zero or `exponent` is negative or not finite.
    #[must_use]
    pub fn new(count: u64, exponent: f64) -> Self {
        assert!(count > 0, "a distribution over nothing");
        assert!(exponent >= 0.0 && exponent.is_finite(), "exponent {exponent}");
        #[expect(clippy::cast_precision_loss, reason = "ranks beyond 2^53 only blur together")]
        let count = count as f64;
        let mut zipf =
            Self { count, exponent, integral_first: 0.0, integral_last: 0.0, shortcut: 0.0 };
        zipf.integral_first = zipf.integral(1.5) - 1.0;
        zipf.integral_last = zipf.integral(count + 0.5);
        zipf.shortcut = 2.0 - zipf.integral_inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    /// A number of `0..count`.
    pub fn sample(&self, rng: &mut impl RngCore) -> u64 {
        loop {
            let draw = self.integral_last + rng.unit() * (self.integral_first - self.integral_last);
            let point = self.integral_inverse(draw);
            let rank = point.round().clamp(1.0, self.count);
            if rank - point <= self.shortcut
                || draw >= self.integral(rank + 0.5) - self.weight(rank)
            {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "clamped to 1..=count above"
                )]
                return rank as u64 - 1;
            }
        }
    }

    fn weight(&self, rank: f64) -> f64 {
        (-self.exponent * rank.ln()).exp()
    }

    /// An antiderivative of [`Self::weight`], continuous in the exponent around 1.
    fn integral(&self, rank: f64) -> f64 {
        let log = rank.ln();
        expm1_over(((1.0 - self.exponent) * log).abs(), (1.0 - self.exponent) * log) * log
    }

    fn integral_inverse(&self, value: f64) -> f64 {
        // Rounding may carry the product just below its pole at -1.
        let scaled = (value * (1.0 - self.exponent)).max(-1.0);
        (ln1p_over(scaled) * value).exp()
    }
}

/// `(e^x - 1) / x`, by its series where the quotient loses its digits.
fn expm1_over(magnitude: f64, x: f64) -> f64 {
    if magnitude > 1e-8 { x.exp_m1() / x } else { 1.0 + x / 2.0 }
}

/// `ln(1 + x) / x`, by its series where the quotient loses its digits.
fn ln1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;

    /// Counts of 200,000 samples lie within five standard deviations of the exact probabilities.
    #[test]
    fn frequencies_follow_the_weights() {
        const SAMPLES: u32 = 200_000;
        for exponent in [0.0, 0.5, 0.99, 1.0, 1.01, 2.0] {
            let zipf = Zipf::new(20, exponent);

            let mut rng = ChaCha8Rng::seed_from_u64(17);
            let mut counts = [0u32; 20];
            for _ in 0..SAMPLES {
                counts[usize::try_from(zipf.sample(&mut rng)).unwrap()] += 1;
            }

            let weights: Vec<f64> = (1..=20).map(|rank| f64::from(rank).powf(-exponent)).collect();
            let total: f64 = weights.iter().sum();
            for (count, weight) in counts.iter().zip(weights) {
                let probability = weight / total;
                let expected = probability * f64::from(SAMPLES);
                let deviation = (expected * (1.0 - probability)).sqrt();
                let error = (f64::from(*count) - expected).abs();
                assert!(error <= 5.0 * deviation, "exponent {exponent}: {count} for {expected}");
            }
        }
    }

    #[test]
    fn a_single_number_is_always_drawn() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let zipf = Zipf::new(1, 1.2);
        assert!((0..100).all(|_| zipf.sample(&mut rng) == 0));
    }

    #[test]
    fn a_large_population_stays_in_its_bounds() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let zipf = Zipf::new(10_000_000_000, 0.8);
        let draws: Vec<u64> = (0..10_000).map(|_| zipf.sample(&mut rng)).collect();
        assert!(draws.iter().all(|&number| number < 10_000_000_000));
        assert!(draws.iter().any(|&number| number > 1_000_000_000));
    }
}
