//! The allocator of one sandbox.
//!
//! [`Heap`] forwards to rquickjs' own allocator and keeps a count. It refuses by returning null, which every allocator
//! may do. So it is as sound as that allocator: no other code creates, moves or frees a block, and the caller upholds
//! the contract of the trait, which is passed on unchanged. Sizes are taken from the allocator's own record of a block,
//! so the count cannot drift; a block that could not be moved stays, and stays counted. The count is in a [`Meter`],
//! which is used only on the engine's one thread.
#![allow(unsafe_code)]

use std::ptr;
use std::rc::Rc;

use rquickjs::allocator::{Allocator, RustAllocator};

use crate::meter::Meter;

/// The counting allocator; the module header has the details.
pub(crate) struct Heap {
    blocks: RustAllocator,
    meter: Rc<Meter>,
}

impl Heap {
    pub(crate) fn new(meter: Rc<Meter>) -> Self {
        Self { blocks: RustAllocator, meter }
    }

    fn counted(&self, block: *mut u8) -> *mut u8 {
        if !block.is_null() {
            // SAFETY: `block` was just handed out by this allocator.
            self.meter.record_alloc(unsafe { RustAllocator::usable_size(block) });
        }
        block
    }
}

// SAFETY: every block comes from `RustAllocator`, which upholds the contract of the trait; null is always allowed.
unsafe impl Allocator for Heap {
    fn alloc(&mut self, size: usize) -> *mut u8 {
        if !self.meter.may_allocate(size) {
            return ptr::null_mut();
        }
        let block = self.blocks.alloc(size);
        self.counted(block)
    }

    fn calloc(&mut self, count: usize, size: usize) -> *mut u8 {
        match count.checked_mul(size) {
            Some(total) if self.meter.may_allocate(total) => {
                let block = self.blocks.calloc(count, size);
                self.counted(block)
            }
            Some(_) | None => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&mut self, block: *mut u8) {
        // SAFETY: the caller upholds the contract, which is passed on.
        unsafe {
            self.meter.record_free(RustAllocator::usable_size(block));
            self.blocks.dealloc(block);
        }
    }

    unsafe fn realloc(&mut self, block: *mut u8, new_size: usize) -> *mut u8 {
        if block.is_null() {
            return self.alloc(new_size);
        }
        // SAFETY: the caller upholds the contract, which is passed on; on failure the old block stays and stays
        // counted.
        unsafe {
            let before = RustAllocator::usable_size(block);
            if new_size > before && !self.meter.may_allocate(new_size - before) {
                return ptr::null_mut();
            }
            let moved = self.blocks.realloc(block, new_size);
            if !moved.is_null() {
                self.meter.record_free(before);
            }
            self.counted(moved)
        }
    }

    unsafe fn usable_size(block: *mut u8) -> usize {
        // SAFETY: the caller upholds the contract, which is passed on.
        unsafe { RustAllocator::usable_size(block) }
    }
}
