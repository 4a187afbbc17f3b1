//! Charging allocations to groups: stocks on the CPUs, and what happens when they run out, overflow,
//! or a group is at its limit.
//!
//! ```text
//! alloc --> the class's stock on this CPU (one store takes the object and pays)
//!            | another group's, or empty
//!            v
//!           the group's stock on this CPU, in bytes
//!            | empty
//!            v
//!           the group and all above it: a batch, else just what is needed
//!            | at its max
//!            v
//!           shrinkers --> stocks of all CPUs --> refused
//! ```
//!
//! A free goes the same way back. What is charged and not in use is at most, per CPU,
//! [`STOCK_BYTES`] and an object for each class, [`PAGE_STOCK`] pages for each order up to 3, and
//! [`CELL_BYTES`] for each of 64 groups. Huge pages have no stock: what one costs is more than a CPU should keep.
//!
//! Context: any; but see [`crate::memcg::Shrink`].

use super::Instance;
use crate::class::{MAX_OBJECT, PageClass, SizeClass};
use crate::codetag::{Caller, scope};
use crate::cpu::{Area, Cell, Stock};
use crate::memcg::{AtMax, Charged};
use crate::os::Platform;
use crate::root::{CHARGED_METADATA, OBJCG_SHIFT, group_event};
use crate::sync::{Ordering, fence, spin};
use crate::units::{Item, ObjcgId, PAGE_SIZE, PageCount};

/// A class's stock is below this, in bytes; or it is one object.
const STOCK_BYTES: u32 = 16 << 10;
/// The stock of blocks of an order up to 3 is below this, in pages.
const PAGE_STOCK: u32 = 16;
/// A group's stock is below this, in bytes.
const CELL_BYTES: u32 = 32 << 10;
/// So long stocks of a CPU are waited for that somebody else is at, in milliseconds.
const PATIENCE_MS: u64 = 1000;
/// Shrinkers are called this often for a request before it is refused.
const TRIES: u32 = 16;
/// What shrinkers are asked for beyond what is needed, so that they are not called each time.
pub(super) const MORE: u64 = 32 << 10;

const _: () = assert!(CELL_BYTES <= Stock::MAX / 2 && STOCK_BYTES / 16 <= Stock::MAX / 2);
// What is too much for a cell is refused by `adjust`, which can be asked for any object's cost.
const _: () = assert!(MAX_OBJECT as u64 + CHARGED_METADATA <= Stock::MAX as u64 / 2);
const _: () = assert!(PAGE_STOCK as u64 * pages_cost(PageCount(1)) <= Stock::MAX as u64 / 2);

/// A stock of objects of that size is below this many.
pub(super) const fn stock_bound(size: u32) -> u32 {
    let fit = STOCK_BYTES / (size + CHARGED_METADATA as u32);
    if fit == 0 { 1 } else { fit }
}

/// The stock of a CPU's array of blocks of pages is below this many; 0: it has none.
pub(super) const fn page_stock_bound(class: PageClass) -> u32 {
    if class.is_huge() { 0 } else { PAGE_STOCK / class.pages() }
}

/// What pages are charged as.
pub(super) const fn pages_cost(pages: PageCount) -> u64 {
    pages.0 as u64 * (PAGE_SIZE as u64 + CHARGED_METADATA)
}

/// The group in an extension word.
#[inline(always)]
pub(super) const fn objcg_of(word: u32) -> ObjcgId {
    ObjcgId(word >> OBJCG_SHIFT)
}

/// A group's part of an extension word.
#[inline(always)]
pub(super) const fn objcg_bits(objcg: ObjcgId) -> u32 {
    objcg.0 << OBJCG_SHIFT
}

impl<P: Platform> Instance<P> {
    /// The group that a request is for: for a deleted one the group it became a part of, so that nothing
    /// more is charged to it and it can go; the root if there is no such group.
    pub(super) fn group_of(&self, caller: Caller) -> ObjcgId {
        let objcg = caller.objcg();
        if objcg.0 < self.groups.used() { self.groups.living(objcg) } else { ObjcgId::ROOT }
    }

    /// What an object of a class, or a block that a CPU keeps, is charged as.
    fn object_cost(&self, class: SizeClass) -> u64 {
        match PageClass::of_array(class) {
            Some(pages) => pages_cost(PageCount(pages.pages())),
            None => u64::from(self.geometry(class).size) + CHARGED_METADATA,
        }
    }

    /// A class's stock is below this, in objects.
    #[inline(always)]
    pub(super) fn stock_bound(&self, class: SizeClass) -> u32 {
        self.layout().stock_bound[class.0 as usize]
    }

    /// Pays for an object of a class, or a block that a CPU keeps. False: the group is at its limit.
    pub(super) fn pay_object(
        &'static self,
        class: SizeClass,
        objcg: ObjcgId,
        caller: Caller,
    ) -> bool {
        let (slot, cost) = (self.slot_hint(), self.object_cost(class));
        let (head, bound) = (Cell::of_class(class), self.stock_bound(class));
        if self.slots.adjust(head, objcg, -1, bound, slot) {
            return true;
        }
        // While others use the class's stock, one object after the other.
        if self.is_others(head, objcg, slot)
            && self.slots.adjust(Cell::of_group(objcg), objcg, -(cost as i32), CELL_BYTES, slot)
        {
            return true;
        }
        let batch = (bound / 2).max(1);
        if batch > 1
            && let Ok(charged) = self.groups.charge(objcg, u64::from(batch) * cost, false)
        {
            self.put_stock(class, Stock::new(objcg, batch - 1), slot);
            self.mind_high(charged);
            return true;
        }
        self.charge(objcg, cost, caller)
    }

    /// `alloc` for a group that has no stock on the class's head, as where groups alternate: pays from
    /// what the group has in stock for everything.
    #[inline(never)]
    pub(super) fn alloc_charged(&'static self, class: SizeClass, caller: Caller) -> *mut u8 {
        let (cell, objcg) = (Cell::of_group(caller.objcg()), caller.objcg());
        let cost = self.object_cost(class) as i32;
        if let Some(word) = self.sites.cached(caller.key)
            && self.slots.uses_rseq()
            && self.slots.adjust(cell, objcg, -cost, CELL_BYTES, 0)
        {
            let item = self.slots.pop(class);
            if !item.is_none() {
                self.book(item, class, word | objcg_bits(objcg));
                return item.address() as *mut u8;
            }
            self.refund_object(class, objcg);
        }
        self.alloc_slow(class, caller)
    }

    /// Pays for bytes that are not an object. False: the group is at its limit.
    pub(super) fn pay_bytes(&'static self, objcg: ObjcgId, bytes: u64, caller: Caller) -> bool {
        let slot = self.slot_hint();
        if bytes <= u64::from(CELL_BYTES / 2) {
            let cell = Cell::of_group(objcg);
            if self.slots.adjust(cell, objcg, -(bytes as i32), CELL_BYTES, slot) {
                return true;
            }
            let more = u64::from(CELL_BYTES / 2);
            if let Ok(charged) = self.groups.charge(objcg, bytes + more, false) {
                self.credit_bytes(objcg, more);
                self.mind_high(charged);
                return true;
            }
        }
        self.charge(objcg, bytes, caller)
    }

    /// Whether a stock on this CPU is in use by another group.
    fn is_others(&self, cell: Cell, objcg: ObjcgId, slot: u32) -> bool {
        let stock = self.stock_here(cell, slot);
        stock.amount() > 0 && stock.objcg() != objcg
    }

    /// What this CPU has in stock there, at this moment.
    fn stock_here(&self, cell: Cell, slot: u32) -> Stock {
        let area = self.slots.current(slot).and_then(|cpu| self.slots.area(cpu));
        area.map_or(Stock::NONE, |area| area.stock(cell))
    }

    /// Puts a paid stock on the head of a class; what was there goes to its group's cell.
    fn put_stock(&'static self, class: SizeClass, stock: Stock, slot: u32) {
        let bytes = |stock| self.stock_bytes(stock, Some(class));
        let Some(before) = self.slots.swap_stock(Cell::of_class(class), stock, slot) else {
            return self.groups.uncharge(stock.objcg(), bytes(stock));
        };
        self.mind_deleted(stock.objcg());
        let (owner, bytes) = (before.objcg(), bytes(before));
        let cell = Cell::of_group(owner);
        if bytes > 0 && !self.slots.adjust(cell, owner, bytes as i32, CELL_BYTES, slot) {
            self.groups.uncharge(owner, bytes);
        }
    }

    /// Takes bytes back that were paid; true if the group's stock on this CPU was full by that.
    fn credit_bytes(&'static self, objcg: ObjcgId, bytes: u64) -> bool {
        let (slot, cell) = (self.slot_hint(), Cell::of_group(objcg));
        if bytes > u64::from(CELL_BYTES / 2) || !self.groups.is_live(objcg) {
            self.groups.uncharge(objcg, bytes);
            return false;
        }
        if self.slots.adjust(cell, objcg, bytes as i32, CELL_BYTES, slot) {
            return false;
        }
        // Full, or of another group with the same place: starts anew.
        match self.slots.swap_stock(cell, Stock::new(objcg, bytes as u32), slot) {
            None => {
                self.groups.uncharge(objcg, bytes);
                false
            }
            Some(before) => {
                self.mind_deleted(objcg);
                self.groups.uncharge(before.objcg(), before.amount().into());
                before.objcg() == objcg
            }
        }
    }

    /// Takes back what was paid for bytes that are not an object.
    pub(super) fn refund_bytes(&'static self, objcg: ObjcgId, bytes: u64) {
        self.credit_bytes(objcg, bytes);
    }

    /// Takes back what was paid for an object, or a block that a CPU keeps.
    #[inline(never)]
    pub(super) fn refund_object(&'static self, class: SizeClass, objcg: ObjcgId) {
        let (slot, cost) = (self.slot_hint(), self.object_cost(class));
        let (head, bound) = (Cell::of_class(class), self.stock_bound(class));
        if bound == 0 {
            return self.refund_bytes(objcg, cost);
        }
        if self.slots.adjust(head, objcg, 1, bound, slot) {
            return;
        }
        if self.is_others(head, objcg, slot) || !self.groups.is_live(objcg) {
            // Where there is too much for the cell, the next ones go to the head.
            if self.credit_bytes(objcg, cost) {
                self.put_stock(class, Stock::new(objcg, 0), slot);
            }
            return;
        }
        // The head is nobody's, or full.
        match self.slots.swap_stock(head, Stock::new(objcg, 1), slot) {
            None => self.groups.uncharge(objcg, cost),
            Some(before) => {
                self.mind_deleted(objcg);
                self.groups.uncharge(before.objcg(), self.stock_bytes(before, Some(class)));
            }
        }
    }

    /// Frees an object, or a block that a CPU keeps, which is out of the books and whose word, as it was, says that
    /// somebody pays for it.
    #[inline(never)]
    pub(super) fn free_charged(&'static self, at: *mut u8, class: SizeClass, word: u32) {
        let (item, objcg) = (Item::at(at as usize), objcg_of(word));
        // SAFETY: a live object until now, given up by the caller.
        if unsafe { self.slots.push_paid(class, item, objcg, self.stock_bound(class)) } {
            return;
        }
        self.free_paid_elsewhere(class, item, objcg);
    }

    /// The same where the class's stock is another group's, or full.
    #[inline(never)]
    fn free_paid_elsewhere(&'static self, class: SizeClass, item: Item, objcg: ObjcgId) {
        let (slot, cost) = (self.slot_hint(), self.object_cost(class) as i32);
        if !self.is_others(Cell::of_class(class), objcg, slot)
            || !self.slots.adjust(Cell::of_group(objcg), objcg, cost, CELL_BYTES, slot)
        {
            self.refund_object(class, objcg);
        }
        // SAFETY: a freed object in our hands.
        if !unsafe { self.slots.push(class, item) } {
            match PageClass::of_array(class) {
                Some(pages) => self.flush_pages(pages, item),
                None => self.flush(class, item),
            }
        }
    }

    /// Charges just so many bytes, and does what can be done so that they are granted.
    #[cold]
    #[inline(never)]
    pub(super) fn charge(&'static self, objcg: ObjcgId, bytes: u64, caller: Caller) -> bool {
        let mut at = match self.groups.charge(objcg, bytes, false) {
            Ok(charged) => {
                self.mind_high(charged);
                return true;
            }
            Err(AtMax(at)) => at,
        };
        self.tell(at, group_event::MAX);
        let again = |at: &mut ObjcgId| match self.groups.charge(objcg, bytes, false) {
            Ok(_) => true,
            Err(AtMax(now)) => {
                *at = now;
                false
            }
        };
        if !scope::is_shrinking() {
            for _ in 0..TRIES {
                let freed = self.reclaim(at, bytes.saturating_add(MORE));
                if again(&mut at) {
                    return true;
                }
                if freed == 0 {
                    break;
                }
            }
            self.recall_below(at);
            if again(&mut at) {
                return true;
            }
        }
        // What shrinkers allocate is what it takes to free something.
        if caller.is_nofail() || scope::is_shrinking() {
            // Refused only if it is more than can be counted.
            let done = self.groups.charge(objcg, bytes, true).is_ok();
            if !scope::is_shrinking() {
                self.tell(at, group_event::OOM);
                self.over_limit(at);
                self.over_limit(self.groups.living(objcg));
            }
            return done;
        }
        self.tell(at, group_event::OOM);
        self.group_refused(at, bytes, caller);
        false
    }

    /// Notes in a group that it went above a limit.
    fn over_limit(&self, at: ObjcgId) {
        if let Some(id) = self.groups.id(at)
            && let Ok(block) = self.groups.get(id)
        {
            block.over.store(1, Ordering::Relaxed);
        }
    }

    /// Calls the shrinkers of groups that are above their `high` by a charge.
    fn mind_high(&'static self, charged: Charged) {
        let Some(lowest) = charged.above_high else { return };
        if scope::is_shrinking() {
            return;
        }
        for (at, block) in self.groups.charged_for(lowest) {
            let high = block.high.load(Ordering::Relaxed);
            let above = block.charged.load(Ordering::Relaxed).saturating_sub(high);
            if above > 0 {
                self.tell(at, group_event::HIGH);
                self.reclaim(at, above);
            }
        }
    }

    /// Counts an event of a group, and tells who waits for one.
    pub(super) fn tell(&self, objcg: ObjcgId, event: usize) {
        if let Some(fd) = self.groups.event(objcg, event) {
            self.platform.signal_event(fd);
        }
    }

    /// Takes a stock back that was put in place while its group was deleted. Pairs with
    /// `group_delete`: whoever comes later sees the other.
    fn mind_deleted(&'static self, objcg: ObjcgId) {
        fence(Ordering::SeqCst);
        if !self.groups.is_live(objcg) {
            self.recall_deleted();
        }
    }

    /// Uncharges what all CPUs have in stock for deleted groups: also for those of which something was
    /// left because others had stopped a CPU for too long.
    pub(super) fn recall_deleted(&'static self) {
        // Pairs with that of `mind_deleted`.
        fence(Ordering::SeqCst);
        self.recall(|stock| !self.groups.is_live(stock.objcg()));
    }

    /// Uncharges what all CPUs have in stock for a group and those below it.
    pub(super) fn recall_below(&'static self, top: ObjcgId) {
        self.recall(|stock| stock.amount() > 0 && self.groups.is_below(stock.objcg(), top));
    }

    /// Uncharges stocks of all CPUs, and leaves nothing there.
    pub(super) fn recall(&'static self, which: impl Fn(Stock) -> bool) {
        let which = |stock: Stock| stock != Stock::NONE && which(stock);
        let holds = |area: &Area| Cell::all().any(|(cell, _)| which(area.stock(cell)));
        for (cpu, area) in self.slots.areas() {
            // Somebody else may be at it, for a moment; longer if the system runs others meanwhile, or
            // for good if this is a signal handler that interrupted him.
            let since = self.platform.now_ms();
            for tries in 0..1_000_000 {
                let late = tries > 1000 && self.platform.now_ms() - since > PATIENCE_MS;
                if late || !holds(area) {
                    break;
                }
                let Some(stopped) = self.slots.stop(cpu, || self.platform.fence_cpus()) else {
                    spin();
                    self.platform.give_way();
                    continue;
                };
                for (cell, class) in Cell::all() {
                    let stock = stopped.stock(cell);
                    if which(stock) {
                        stopped.clear_stock(cell);
                        self.groups.uncharge(stock.objcg(), self.stock_bytes(stock, class));
                    }
                }
                break;
            }
        }
    }

    fn stock_bytes(&self, stock: Stock, class: Option<SizeClass>) -> u64 {
        u64::from(stock.amount()) * class.map_or(1, |class| self.object_cost(class))
    }

    /// What all CPUs have in stock, by group: calls `each` with bytes, in parts.
    pub(super) fn each_stock(&'static self, mut each: impl FnMut(ObjcgId, u64)) {
        for (_, area) in self.slots.areas() {
            for (cell, class) in Cell::all() {
                let stock = area.stock(cell);
                if stock.amount() > 0 {
                    each(stock.objcg(), self.stock_bytes(stock, class));
                }
            }
        }
    }

    /// Charges anew what is live, in a forked child, whose counts are not of one moment.
    ///
    /// # Safety
    /// There is no other thread.
    pub(super) unsafe fn recharge(&'static self) {
        if !self.groups.any() {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            self.groups.repair(scope::is_shrinking());
            self.groups.forget_charges();
        }
        self.census_by_group(|held| {
            if held.objcg != ObjcgId::ROOT {
                // SAFETY: the caller's promise.
                unsafe { self.groups.adopt(held.objcg) };
                let _ = self.groups.charge(held.objcg, held.charged(), true);
            }
        });
        (1..self.groups.used()).for_each(|objcg| self.groups.settle(ObjcgId(objcg)));
    }
}
