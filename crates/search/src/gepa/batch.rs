//! The minibatches of train examples that parents and children are compared on.

use cantrip_ds::stats::shuffle;

/// Walks the train examples in minibatches. Each epoch is a shuffle of its own, and a short end is filled from the next
/// epoch.
#[derive(Debug, Clone)]
pub struct Minibatches {
    /// The beginning of the labels of the epochs, as in `golden|epoch`.
    label: String,
    examples: usize,
    size: usize,
    epoch: u64,
    order: Vec<usize>,
    place: usize,
}

impl Minibatches {
    /// Makes the walk over this number of examples.
    pub fn new(label: impl Into<String>, examples: usize, size: usize) -> Self {
        let label = label.into();
        let order = epoch_order(&label, 0, examples);
        Self { label, examples, size, epoch: 0, order, place: 0 }
    }

    /// Returns the next minibatch, by the places of its examples. An example that is in it already is passed over, so
    /// that only a train split that is smaller than a minibatch makes a smaller one.
    pub fn take_next(&mut self) -> Vec<usize> {
        let size = self.size.min(self.examples);
        let mut batch = Vec::with_capacity(size);
        while batch.len() < size {
            if self.place == self.order.len() {
                self.epoch += 1;
                self.order = epoch_order(&self.label, self.epoch, self.examples);
                self.place = 0;
            }
            let example = self.order[self.place];
            self.place += 1;
            if !batch.contains(&example) {
                batch.push(example);
            }
        }
        batch
    }
}

/// Returns the order of the examples in an epoch, from 0, by their places.
pub fn epoch_order(label: &str, epoch: u64, examples: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..examples).collect();
    shuffle(&format!("{label}|{epoch}"), &mut order);
    order
}
